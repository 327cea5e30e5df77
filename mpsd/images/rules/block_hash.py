"""Keyed hashes of blocks and manifests, of 16 bytes.

A manifest's is HMAC-SHA256, cut off.  A block's name is the HMAC of sums that NH makes of its bytes
(native/include/mpsd_image.h), whose key is made of the same key.  A GPU makes them at the rate of its memory, and a core at 10
to 20 GB/s, where SHA-256 has 1 to 2.  Without the key it is impossible to choose two blocks of one name, or to find the block
of a name.  Pure.
"""

import hashlib
import hmac
from functools import cached_property

HASH_BYTES = 16
KEY_BYTES = 32
SUMS_BYTES = 32  # of NH: two blocks have the same with a probability of at most 2^-128
BLOCK_KEY_BYTES = (2 << 20) + 48
Bytes = bytes | bytearray | memoryview


class BlockHash:
    """The hashes under one key.  Threads can use it at the same time: it works outside the interpreter's lock."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._begun = hmac.new(key, digestmod="sha256")

    def __call__(self, data: Bytes) -> bytes:
        one = self._begun.copy()
        one.update(data)
        return one.digest()[:HASH_BYTES]

    def name_of(self, sums: bytes) -> bytes:
        """Return the name of the block that has these sums."""
        return self(b"block" + sums)

    @cached_property
    def block_key(self) -> bytes:
        """The key of the sums."""
        return hashlib.shake_256(b"blocks" + self._key).digest(BLOCK_KEY_BYTES)
