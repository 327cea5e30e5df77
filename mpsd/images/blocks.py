"""Read and hash blocks of 2 MiB, in C: outside the interpreter's lock (native/include/mpsd_image.h)."""

import os

from mpsd.images.rules.block_hash import Bytes
from mpsd.native import ffi, lib


def sums_of(block: Bytes, key: bytes) -> bytes:
    """Return the sums of a block, of which its name is made."""
    sums = ffi.new("uint64_t[]", lib.MPSD_BLOCK_SUMS)
    lib.mpsd_hash_block(ffi.from_buffer("uint32_t[]", block), ffi.from_buffer("uint32_t[]", key), sums)
    return bytes(ffi.buffer(sums))


def read_block(file: int, slot: int, into: Bytes, key: bytes) -> bytes:
    """Read the block in a slot of the file, and return its sums.  Raise OSError."""
    sums = ffi.new("uint64_t[]", lib.MPSD_BLOCK_SUMS)
    memory = ffi.from_buffer(into, require_writable=True)
    if lib.mpsd_read_block(file, slot, memory, ffi.from_buffer("uint32_t[]", key), sums):
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return bytes(ffi.buffer(sums))
