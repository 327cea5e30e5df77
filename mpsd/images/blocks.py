"""Read and hash blocks of 2 MiB, in C: outside the interpreter's lock (native/include/mpsd_image.h)."""

from collections.abc import Sequence

from mpsd.images.rules.block_hash import SUMS_BYTES, Bytes
from mpsd.native import ffi, lib


def sums_of(block: Bytes, key: bytes) -> bytes:
    """Return the sums of a block, of which its name is made."""
    sums = ffi.new("uint64_t[]", lib.MPSD_BLOCK_SUMS)
    lib.mpsd_hash_block(ffi.from_buffer("uint32_t[]", block), ffi.from_buffer("uint32_t[]", key), sums)
    return bytes(ffi.buffer(sums))


def read_blocks(files: Sequence[int], slots: Sequence[int], into: Bytes, key: bytes) -> tuple[list[bytes], int]:
    """Read a block of each file.  Return the sums of those that were read, and errno, for why the next one was not, or 0."""
    sums = ffi.new("uint64_t[]", lib.MPSD_BLOCK_SUMS * len(files))
    memory = ffi.from_buffer(into, require_writable=True)
    done = lib.mpsd_read_blocks(len(files), files, slots, memory, ffi.from_buffer("uint32_t[]", key), sums)
    why = 0 if done == len(files) else ffi.errno
    found = bytes(ffi.buffer(sums))
    return [found[at : at + SUMS_BYTES] for at in range(0, done * SUMS_BYTES, SUMS_BYTES)], why
