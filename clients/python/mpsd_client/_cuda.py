"""The GPU of an arena, by its CUDA ordinal in this process, and its context.

This module uses only documented calls of libcuda.so.1, by ctypes, and loads the library at the first call.
"""

import ctypes
import functools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from mpsd_client._session import CudaError

INVALID_CONTEXT = 201
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
STACK_SIZE = 0  # CU_LIMIT_STACK_SIZE


@functools.cache
def _driver() -> Any:
    """Load and initialize the driver.  Raises OSError if this machine has no CUDA driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    _call(driver, "cuInit", 0)
    return driver


def _call(driver: Any, name: str, *arguments: Any) -> None:
    if status := getattr(driver, name)(*arguments):
        raise CudaError(status, f"{name} failed")


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver by its name.  Raises CudaError."""
    _call(_driver(), name, *arguments)


def device_of(gpu: str) -> int:
    """Return the ordinal of a GPU (`GPU-...`) in this process.  Raises LookupError if the GPU is not visible here."""
    driver, count, bytes_ = _driver(), c_int(), (c_char * 16)()
    _call(driver, "cuDeviceGetCount", byref(count))
    seen = []
    for ordinal in range(count.value):
        device = c_int()
        _call(driver, "cuDeviceGet", byref(device), ordinal)
        _call(driver, "cuDeviceGetUuid_v2", bytes_, device)
        seen.append(f"GPU-{uuid.UUID(bytes=bytes_.raw)}")
        if seen[-1].lower() == gpu.lower():
            return ordinal
    raise LookupError(f"{gpu} is not visible to CUDA in this process; visible: {', '.join(seen) or 'none'}")


def uuid_of(ordinal: int) -> str:
    """Return the `GPU-...` of a device of this process.  Raises CudaError if the device does not exist."""
    driver, device, bytes_ = _driver(), c_int(), (c_char * 16)()
    _call(driver, "cuDeviceGet", byref(device), ordinal)
    _call(driver, "cuDeviceGetUuid_v2", bytes_, device)
    return f"GPU-{uuid.UUID(bytes=bytes_.raw)}"


def current_gpu() -> str:
    """Return the `GPU-...` of the current context, or of the first visible device without one.  Raises CudaError."""
    current = c_int(0)
    status = _driver().cuCtxGetDevice(byref(current))
    if status not in (0, INVALID_CONTEXT):
        raise CudaError(status, "cuCtxGetDevice failed")
    return uuid_of(current.value if status == 0 else 0)


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """Make a context of this GPU current in this thread: keep a current one, else use the primary one, which all libraries
    share."""
    driver, current = _driver(), c_int(-1)
    status = driver.cuCtxGetDevice(byref(current))
    if status not in (0, INVALID_CONTEXT):
        raise CudaError(status, "cuCtxGetDevice failed")
    if status == 0 and current.value == ordinal:
        yield
        return
    with with_context(_primary(ordinal)):
        yield


def current_context() -> int:
    """Return the handle of this thread's context; 0 without one.  Raises CudaError."""
    context = c_void_p()
    call("cuCtxGetCurrent", byref(context))
    return context.value or 0


@contextmanager
def with_context(context: int) -> Iterator[None]:
    """Make a context of another thread current in this one too; 0: leave this thread as it is."""
    if context:
        call("cuCtxPushCurrent_v2", c_void_p(context))
    try:
        yield
    finally:
        if context:
            _driver().cuCtxPopCurrent_v2(byref(c_void_p()))


def copy_out(address: int, size: int) -> bytes:
    """Copy GPU memory to the host, after all work on the default stream of the current context.  Raises CudaError."""
    room = ctypes.create_string_buffer(size)
    _call(_driver(), "cuMemcpyDtoH_v2", room, c_uint64(address), c_size_t(size))
    return room.raw


def copy_in(address: int, data: bytes) -> None:
    """Copy the data to GPU memory, after all work on the default stream of the current context.  Raises CudaError."""
    _call(_driver(), "cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))


def upload_graph(graph: int, stream: int) -> None:
    """Upload an executable graph to the GPU, so that its first launch does not have to.  Raises CudaError."""
    _call(_driver(), "cuGraphUpload", c_void_p(graph), c_void_p(stream))


def new_stream(ordinal: int) -> int:
    """Create a non-blocking stream on this device; it is never destroyed.  Raises CudaError."""
    stream = c_void_p()
    with on_device(ordinal):
        _call(_driver(), "cuStreamCreate", byref(stream), NON_BLOCKING)
    return int(stream.value or 0)


def limit_stacks(ordinal: int, stack_bytes: int) -> int:
    """Set the stack size of each GPU thread in bytes, and return the old one.  Waits for the GPU.  Raises CudaError."""
    driver, before = _driver(), c_size_t()
    with on_device(ordinal):
        _call(driver, "cuCtxGetLimit", byref(before), STACK_SIZE)
        _call(driver, "cuCtxSetLimit", STACK_SIZE, c_size_t(stack_bytes))
    return before.value


@functools.cache
def _primary(ordinal: int) -> int:
    """Return the primary context, retained once for the life of the process: arenas come and go, and other libraries use it."""
    driver, device, context = _driver(), c_int(), c_void_p()
    _call(driver, "cuDeviceGet", byref(device), ordinal)
    _call(driver, "cuDevicePrimaryCtxRetain", byref(context), device)
    return context.value or 0
