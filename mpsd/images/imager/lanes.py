"""Ways to a GPU, one for each thread, by which blocks of an image go there and are hashed there (native/include/mpsd_lane.h).

Its threads work in C, outside the interpreter's lock, except once for each piece of several blocks.
"""

import threading
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from mpsd.images.imager.device import DeviceMemory, Gpu, PinnedMemory, call, make_event, make_stream, upload
from mpsd.images.imager.kernel import THREADS, HashKernel
from mpsd.images.rules.block_hash import SUMS_BYTES
from mpsd.native import ffi, lib

BUFFER_BYTES = 2 << 20  # smaller ones fit into the processor's cache, and are slower (docs/measurements.md)
PIECES, MOST_BLOCKS = int(lib.MPSD_LANE_PIECES), int(lib.MPSD_PIECE_BLOCKS)
_CUDA = 12000  # the version that has these functions
_FUNCTIONS = ("cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize", "cuLaunchKernel")


class Lanes:
    """Lanes to the current GPU, with the buffers and the kernel that they share; the process's end frees them."""

    def __init__(self, gpu: Gpu, key: bytes, count: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        """gpu: the current one.  key: of the hash."""
        kernel = HashKernel(gpu.number)
        self._key = DeviceMemory(len(key))
        upload(self._key.address, key, make_stream())
        functions = [call(driver.cuGetProcAddress, name.encode(), _CUDA, 0)[0] for name in _FUNCTIONS]
        self.lanes = [Lane(functions, kernel, self._key.address, buffer_bytes) for _ in range(count)]

    def make_buffers(self) -> None:
        """Make those of all lanes: the first one can send long before the last one could."""
        for lane in self.lanes:
            lane.make_buffers()


class Lane:
    """The way of one thread, in which PIECES can be under way."""

    def __init__(self, functions: Sequence[int], kernel: HashKernel, key: int, buffer_bytes: int) -> None:
        self._owned = make_stream(), [make_event() for _ in range(lib.MPSD_LANE_BUFFERS + PIECES)]
        stream, events = self._owned
        self._lane = lane = ffi.new("struct mpsd_lane *")
        for name, address in zip(_FUNCTIONS, functions, strict=True):
            setattr(lane.gpu, name, ffi.cast(ffi.typeof(getattr(lane.gpu, name)), address))
        lane.stream, lane.kernel = _pointer(stream), _pointer(kernel.function)
        lane.copied = [_pointer(each) for each in events[PIECES:]]
        lane.hashed = [_pointer(each) for each in events[:PIECES]]
        lane.key, lane.buffer_bytes = key, buffer_bytes
        lane.most_cuda_blocks, lane.cuda_block_threads = kernel.most, THREADS
        self._sums = ffi.new("uint64_t[]", MOST_BLOCKS * lib.MPSD_BLOCK_SUMS)
        self._buffers: PinnedMemory | None = None
        self._lock = threading.Lock()  # protects _buffers

    def make_buffers(self) -> None:
        """Make them, unless they are there; the lane's thread does, or an earlier one."""
        with self._lock:
            if self._buffers is None:
                size = lib.MPSD_LANE_BUFFERS * self._lane.buffer_bytes
                self._buffers = PinnedMemory(size + PIECES * ffi.sizeof("struct mpsd_piece"))
                self._lane.buffers = ffi.cast("char *", self._buffers.address)
                self._lane.pieces = ffi.cast("struct mpsd_piece *", self._buffers.address + size)

    def send(self, piece: int, files: Sequence[int], slots: Sequence[int], addresses: Sequence[int]) -> int:
        """Read a block of each file to these addresses of the GPU, and have it hashed there; return how many could be read.

        piece: which one of the lane; the one before it there has been waited for.  The GPU is still at work on return."""
        self.make_buffers()
        return self._checked(lib.mpsd_lane_send(self._lane, piece, len(files), files, slots, addresses))

    def sums(self, piece: int, count: int) -> list[bytes]:
        """Wait for the GPU, and return the sums of the first blocks of a piece, SUMS_BYTES each."""
        self._checked(lib.mpsd_lane_wait(self._lane, piece, count, self._sums))
        found = bytes(ffi.buffer(self._sums, count * SUMS_BYTES))
        return [found[at : at + SUMS_BYTES] for at in range(0, len(found), SUMS_BYTES)]

    def _checked(self, found: int) -> int:
        if found < 0:
            raise OSError(f"a call of the driver failed: {driver.CUresult(self._lane.error).name}")
        return found


def _pointer(handle: Any) -> Any:
    return ffi.cast("void *", int(handle))
