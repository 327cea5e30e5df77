"""Memory that the imager uses: an arena's, imported by descriptors, and its own on the GPU and pinned in the host.

It knows the driver's calls (cuda.bindings), and nothing about images.  A call that fails raises OSError with the driver's name
for the error; without room, MemoryError.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from cuda.bindings import driver

DESCRIPTOR = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the driver, and return what it gave in addition to its status."""
    status, *found = function(*arguments)
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(f"{function.__name__}: the GPU is out of memory")
    if status != driver.CUresult.CUDA_SUCCESS:
        raise OSError(f"{function.__name__} failed: {status.name}")
    return found[0] if len(found) == 1 else tuple(found)


def prepare() -> "Gpu | None":
    """Initialise the driver and, if this process sees one GPU alone, make its context: the first Gpu need not wait as long."""
    call(driver.cuInit, 0)
    return Gpu(bytes(call(driver.cuDeviceGetUuid, 0).bytes).hex()) if call(driver.cuDeviceGetCount) == 1 else None


class Gpu:
    """A GPU by its UUID, and its primary context.  Raises LookupError if it is not visible in this process."""

    def __init__(self, uuid: str) -> None:
        call(driver.cuInit, 0)
        wanted = uuid.lower().removeprefix("gpu-").replace("-", "")
        for self.number in range(call(driver.cuDeviceGetCount)):
            if bytes(call(driver.cuDeviceGetUuid, self.number).bytes).hex() == wanted:
                call(driver.cuDevicePrimaryCtxSetFlags, self.number, driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC)
                self._context = call(driver.cuDevicePrimaryCtxRetain, self.number)
                return
        raise LookupError(f"GPU {uuid} is not visible to CUDA in the imager")

    def set_current(self) -> None:
        """Make it the calling thread's."""
        call(driver.cuCtxSetCurrent, self._context)

    def close(self) -> None:
        """Let the context go, which ends it unless another Gpu of this process has it."""
        call(driver.cuDevicePrimaryCtxRelease, self.number)


class ArenaMemory:
    """An arena's allocations, mapped to be read in one range of addresses: the byte at an offset is at `base + offset`."""

    def __init__(self, device: int, window_bytes: int) -> None:
        """device: the number of the current GPU."""
        self._device, self._window_bytes = device, window_bytes
        self.base = int(call(driver.cuMemAddressReserve, window_bytes, 0, 0, 0))
        self._mapped: dict[int, tuple[int, int]] = {}  # offset: bytes, and the commit that the allocation came with

    @property
    def allocations(self) -> Mapping[int, tuple[int, int]]:
        return self._mapped

    def add(self, offset: int, size: int, since: int, descriptor: int) -> None:
        """Map an allocation in place of what was mapped there.  The caller keeps the descriptor."""
        if offset < 0 or size <= 0 or offset + size > self._window_bytes:
            raise ValueError(f"an allocation of {size} bytes at {offset} is outside the arena's window")
        self.keep([each for each in self._mapped.items() if not _overlap(each, (offset, size))])
        handle = call(driver.cuMemImportFromShareableHandle, descriptor, DESCRIPTOR)
        try:
            call(driver.cuMemMap, self.base + offset, size, 0, handle, 0)
        finally:
            call(driver.cuMemRelease, handle)  # the mapping holds the memory
        self._mapped[offset] = size, since
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self._device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        call(driver.cuMemSetAccess, self.base + offset, size, [access], 1)

    def keep(self, items: Sequence[tuple[int, tuple[int, int]]]) -> None:
        """Unmap all other allocations.  The GPU must be done with them."""
        kept = dict(items)
        for offset in [offset for offset, what in self._mapped.items() if kept.get(offset) != what]:
            size, _ = self._mapped.pop(offset)
            call(driver.cuMemUnmap, self.base + offset, size)

    def close(self) -> None:
        self.keep([])
        call(driver.cuMemAddressFree, self.base, self._window_bytes)


def _overlap(mapped: tuple[int, tuple[int, int]], fresh: tuple[int, int]) -> bool:
    return mapped[0] < fresh[0] + fresh[1] and fresh[0] < mapped[0] + mapped[1][0]


class DeviceMemory:
    """Memory of the imager on the GPU."""

    def __init__(self, size: int) -> None:
        self.address, self.bytes = int(call(driver.cuMemAlloc, size)), size

    def close(self) -> None:
        call(driver.cuMemFree, self.address)


class ExportedMemory:
    """New memory on the GPU for another process, mapped here to be filled; who has its descriptor keeps it."""

    def __init__(self, device: int, size: int) -> None:
        made = driver.CUmemAllocationProp()
        made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        made.location.id = device
        made.requestedHandleTypes = DESCRIPTOR
        access = driver.CUmemAccessDesc()
        access.location = made.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        with ExitStack() as undo:
            self._handle = call(driver.cuMemCreate, size, made, 0)
            undo.callback(call, driver.cuMemRelease, self._handle)
            self.address = int(call(driver.cuMemAddressReserve, size, 0, 0, 0))
            undo.callback(call, driver.cuMemAddressFree, self.address, size)
            call(driver.cuMemMap, self.address, size, 0, self._handle, 0)
            undo.callback(call, driver.cuMemUnmap, self.address, size)
            call(driver.cuMemSetAccess, self.address, size, [access], 1)
            self._undo = undo.pop_all()

    def export(self) -> int:
        """Return a descriptor, which the caller closes."""
        return int(call(driver.cuMemExportToShareableHandle, self._handle, DESCRIPTOR, 0))

    def close(self) -> None:
        self._undo.close()


class PinnedMemory:
    """Host memory that the GPU copies to by itself; its pages are touched and pinned here, once."""

    def __init__(self, size: int) -> None:
        self.address, self.bytes = int(call(driver.cuMemHostAlloc, size, 0)), size
        self.view = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")

    def close(self) -> None:
        self.view.release()
        call(driver.cuMemFreeHost, self.address)


def make_stream(priority: int = 0) -> Any:
    """Return a new stream of the current context, which does not wait for the default stream."""
    return call(driver.cuStreamCreateWithPriority, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, priority)


def upload(address: int, data: bytes, stream: Any) -> None:
    """Copy bytes to the GPU, which has them when this returns.

    cuMemcpyHtoD may return before that, and no stream of `make_stream` waits for it (CUDA driver API, "API synchronization
    behavior")."""
    call(driver.cuMemcpyHtoDAsync, address, data, len(data), stream)
    call(driver.cuStreamSynchronize, stream)


def make_event(*, is_awaited: bool = False) -> Any:
    """Return a new event without times.  is_awaited: a thread that waits for it sleeps; else it needs a processor."""
    flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    if is_awaited:
        flags |= driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC
    return call(driver.cuEventCreate, int(flags))


def free_bytes() -> int:
    """Return the free memory of the current GPU, as far as this process may have it."""
    free, _ = call(driver.cuMemGetInfo)
    return int(free)


def runs(places: Sequence[int], step: int) -> list[tuple[int, int, int]]:
    """Return (index of the first, how many, the first) of the parts of `places` that follow each other at this distance."""
    found: list[tuple[int, int, int]] = []
    for index, place in enumerate(places):
        if found and found[-1][2] + found[-1][1] * step == place:
            found[-1] = found[-1][0], found[-1][1] + 1, found[-1][2]
        else:
            found.append((index, 1, place))
    return found
