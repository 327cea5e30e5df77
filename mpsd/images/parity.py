"""The parity of blocks of 2 MiB, in C: outside the interpreter's lock (native/include/mpsd_parity.h)."""

from collections.abc import Sequence

from mpsd.images.rules.block_hash import Bytes
from mpsd.native import ffi, lib


def xor_blocks(into: Bytes, blocks: Sequence[Bytes]) -> None:
    """Write the XOR of the blocks, one at least, to `into`, which may be one of them."""
    held = [ffi.from_buffer(each) for each in blocks]
    lib.mpsd_xor_blocks(ffi.from_buffer(into, require_writable=True), len(held), held)
