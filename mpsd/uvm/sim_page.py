"""The page by which a simulated client shows its VA space, as bytes (native/sim/include/uvm_space.h).  No I/O.

    0   u32 magic 'UVMS'   4  u32 version 1
    8   u32 attached       mpsd       1 while a queue listens
    12  u32 registered     driver     1 from the moment the client has a context
    16  u64 dropped        driver
    24  u32 range_count    mpsd       written last     28  u32 reserved
    32  { u64 base, length, is_sparse } [64]           mpsd

`SpacePage` works on any writable memory of that size.  The client can write all of it, so mpsd trusts none of its contents.
"""

from dataclasses import dataclass, field

from mpsd.uvm import abi

PAGE_BYTES = 4096
MAGIC, VERSION = 0x534D5655, 1
MOST_RANGES = 64
_PAGE_SIZE = 64 * 1024  # of a sparse mapping
_RANGE_WORDS = 3
_MAGIC_AT, _VERSION_AT, _ATTACHED_AT, _REGISTERED_AT, _COUNT_AT = 0, 1, 2, 3, 6  # in words of 4 bytes
_DROPPED_AT, _RANGES_AT = 2, 4  # in words of 8 bytes
_INVALID_ADDRESS, _NO_MEMORY = 0x1E, 0x51


@dataclass(slots=True)
class SpacePage:
    """Answers as the driver does, with its status codes.  Released before the memory is closed."""

    memory: memoryview
    _words: memoryview = field(init=False)
    _longs: memoryview = field(init=False)

    def __post_init__(self) -> None:
        if self.memory.nbytes != PAGE_BYTES:
            raise ValueError(f"a page of {self.memory.nbytes} bytes")
        self._words, self._longs = self.memory.cast("I"), self.memory.cast("Q")

    @property
    def is_made(self) -> bool:
        return bool(self._words[_MAGIC_AT])

    @property
    def is_known(self) -> bool:
        return self._words[_MAGIC_AT] == MAGIC and self._words[_VERSION_AT] == VERSION

    @property
    def is_registered(self) -> bool:
        return bool(self._words[_REGISTERED_AT])

    @property
    def dropped(self) -> int:
        return int(self._longs[_DROPPED_AT])

    @property
    def ranges(self) -> list[tuple[int, int, bool]]:
        """Base, length, and whether it is sparse, of each range."""
        count = min(self._words[_COUNT_AT], MOST_RANGES)
        places = [_RANGES_AT + each * _RANGE_WORDS for each in range(count)]
        return [(self._longs[at], self._longs[at + 1], bool(self._longs[at + 2])) for at in places]

    def set_attached(self, is_attached: bool) -> None:
        self._words[_ATTACHED_AT] = int(is_attached)

    def reserve(self, base: int, length: int) -> int:
        ranges = self.ranges
        if base <= 0 or length <= 0 or base % 4096 or length % 4096:
            return _INVALID_ADDRESS
        if any(base < start + size and start < base + length for start, size, _ in ranges if size):
            return abi.ADDRESS_IN_USE
        free = next((place for place, (_, size, _) in enumerate(ranges) if not size), len(ranges))
        if free == MOST_RANGES:
            return _NO_MEMORY
        self._write(free, base, length)
        self._words[_COUNT_AT] = max(free + 1, len(ranges))
        return abi.DONE

    def lay_sparse(self, base: int, length: int) -> int:
        if base % _PAGE_SIZE or length % _PAGE_SIZE:
            return _INVALID_ADDRESS
        place = self._find(base, length)
        if place is None:
            return _INVALID_ADDRESS
        if not self.is_registered:
            return abi.INVALID_DEVICE
        self._longs[_RANGES_AT + place * _RANGE_WORDS + 2] = 1
        return abi.DONE

    def free(self, base: int, length: int) -> int:
        place = self._find(base, length)
        if place is None:
            return _INVALID_ADDRESS
        self._write(place, 0, 0)
        return abi.DONE

    def release(self) -> None:
        for view in (self._words, self._longs, self.memory):
            view.release()

    def _find(self, base: int, length: int) -> int | None:
        return next((place for place, (b, size, _) in enumerate(self.ranges) if (b, size) == (base, length)), None)

    def _write(self, place: int, base: int, length: int) -> None:
        """Write a range.  It is not sparse before it has its address, and no longer when it loses it."""
        at = _RANGES_AT + place * _RANGE_WORDS
        for offset, value in ((2, 0), (0, base), (1, length)):
            self._longs[at + offset] = value
