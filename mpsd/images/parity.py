"""The parity of blocks of 2 MiB, in C: outside the interpreter's lock (native/include/mpsd_parity.h)."""

from collections.abc import Sequence

from mpsd.images.rules.block_hash import Bytes
from mpsd.native import ffi, lib


def make_parity(blocks: Sequence[Bytes | None], p: Bytes, q: Bytes | None = None) -> None:
    """Write the parity of the blocks, None for one of zeros, to p and q, which may be blocks themselves."""
    held = [ffi.NULL if each is None else ffi.from_buffer(each) for each in blocks]
    second = ffi.NULL if q is None else ffi.from_buffer(q, require_writable=True)
    lib.mpsd_parity(len(held), held, ffi.from_buffer(p, require_writable=True), second)


def combine(factors: tuple[int, int], first: Bytes, second: Bytes, into: Bytes) -> None:
    """Write the sum of both blocks, each times its factor, to `into`, which may be one of them."""
    target = ffi.from_buffer(into, require_writable=True)
    lib.mpsd_parity_combine(factors[0], ffi.from_buffer(first), factors[1], ffi.from_buffer(second), target)
