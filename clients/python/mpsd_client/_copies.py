"""Private copies of an arena's memory, mapped at the arena's own addresses for a while.

    address   A ──▶ memory of the arena      copy_blocks       A ──▶ copy (writable)
                                            ◀── restore ───          memory of the arena: a handle without an address

Programs, their tensors and their graphs see the same addresses all the time.  Only documented calls of libcuda.so.1, as _cuda.
"""

from collections.abc import Sequence
from contextlib import suppress
from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from dataclasses import dataclass

from mpsd_client import _cuda
from mpsd_client._session import CudaError
from mpsd_client._window import Block

READ, READ_WRITE = 1, 3  # CUmemAccess_flags
PINNED, DEVICE = 1, 1  # CUmemAllocationType, CUmemLocationType
OUT_OF_MEMORY = 2
SHARE_OF_FREE = 0.5  # of the GPU's free memory: the active may need some at the same moment


class _Location(Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Properties(Structure):
    """CUmemAllocationProp, with its allocFlags."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class _Access(Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", c_int))


@dataclass(slots=True)
class Copy:
    """The copy of one block.  memory: its handle.  original: the handle of the arena's memory; 0: this is mapped."""

    address: int
    bytes: int
    memory: int
    original: int = 0


def copy_blocks(device: int, blocks: Sequence[Block]) -> list[Copy]:
    """Map copies of the blocks, with their contents, writable, in place of the arena's memory.  This process's work on the GPU
    has to be done, and its context to be current.

    Raises MemoryError if the copies need more than SHARE_OF_FREE of the GPU's free memory; CudaError.  Then all is as before.
    """
    needed, free = sum(block.bytes for block in blocks), _free_bytes()
    if needed > free * SHARE_OF_FREE:
        raise MemoryError(f"copies take {needed / 2**30:.2f} GiB, more than half of the free {free / 2**30:.2f} GiB")
    copies: list[Copy] = []
    try:
        for block in blocks:
            copies.append(Copy(block.address, block.bytes, _create(device, block.bytes)))
        if copies:
            _fill(device, copies, needed)
        for copy in copies:
            _show(device, copy)
    except BaseException as exc:
        with suppress(CudaError):
            restore(device, copies)
        if isinstance(exc, CudaError) and exc.code == OUT_OF_MEMORY:
            raise MemoryError(f"the GPU has no memory for copies of {needed / 2**30:.2f} GiB: {exc}") from None
        raise
    return copies


def restore(device: int, copies: Sequence[Copy]) -> None:
    """Map the arena's memory again, to read, and free the copies.  The GPU must be done with them.

    Raises the first CudaError, after it has tried all: some of the arena is not mapped then.
    """
    failure: CudaError | None = None
    for copy in copies:
        try:
            if copy.original:
                original, copy.original = copy.original, 0
                try:
                    _cuda.call("cuMemUnmap", c_uint64(copy.address), c_size_t(copy.bytes))
                    _map(device, copy.address, copy.bytes, original, READ)
                finally:
                    _cuda.call("cuMemRelease", c_uint64(original))
            _cuda.call("cuMemRelease", c_uint64(copy.memory))
        except CudaError as exc:
            failure = failure or exc
    if failure is not None:
        raise failure


def _free_bytes() -> int:
    free = c_size_t()
    _cuda.call("cuMemGetInfo_v2", byref(free), byref(c_size_t()))
    return free.value


def _create(device: int, size: int) -> int:
    """Allocate memory that no other process can map; return its handle."""
    made, asked = c_uint64(), _Properties(type=PINNED, location=_Location(DEVICE, device))
    _cuda.call("cuMemCreate", byref(made), c_size_t(size), byref(asked), c_uint64(0))
    return made.value


def _fill(device: int, copies: Sequence[Copy], total: int) -> None:
    """Copy the contents, through addresses that are reserved for this moment."""
    base = c_uint64()
    _cuda.call("cuMemAddressReserve", byref(base), c_size_t(total), c_size_t(0), c_uint64(0), c_uint64(0))
    place = base.value
    try:
        for copy in copies:
            _map(device, place, copy.bytes, copy.memory, READ_WRITE)
            place += copy.bytes
            _cuda.call("cuMemcpyDtoD_v2", c_uint64(place - copy.bytes), c_uint64(copy.address), c_size_t(copy.bytes))
        _cuda.call("cuCtxSynchronize")
    finally:
        if place > base.value:
            _cuda.call("cuMemUnmap", base, c_size_t(place - base.value))
        _cuda.call("cuMemAddressFree", base, c_size_t(total))


def _show(device: int, copy: Copy) -> None:
    """Map a copy in place of the arena's memory, of which the handle keeps hold."""
    original = c_uint64()
    _cuda.call("cuMemRetainAllocationHandle", byref(original), c_void_p(copy.address))
    try:
        _cuda.call("cuMemUnmap", c_uint64(copy.address), c_size_t(copy.bytes))
        try:
            _map(device, copy.address, copy.bytes, copy.memory, READ_WRITE)
        except BaseException:
            _map(device, copy.address, copy.bytes, original.value, READ)
            raise
    except BaseException:
        _cuda.call("cuMemRelease", original)
        raise
    copy.original = original.value


def _map(device: int, address: int, size: int, memory: int, access: int) -> None:
    wanted = _Access(_Location(DEVICE, device), access)
    _cuda.call("cuMemMap", c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(memory), c_uint64(0))
    try:
        _cuda.call("cuMemSetAccess", c_uint64(address), c_size_t(size), byref(wanted), c_size_t(1))
    except BaseException:
        with suppress(CudaError):
            _cuda.call("cuMemUnmap", c_uint64(address), c_size_t(size))
        raise
