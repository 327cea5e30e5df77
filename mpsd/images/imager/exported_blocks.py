"""The blocks of memory that is being made for another process, for the threads that fill them."""

import threading

from mpsd.images.rules.manifest import BLOCK_BYTES


class ExportedBlocks:
    """Guards that a thread gets a block only once its memory is there: `[number]` waits for it.

    Raise IndexError: there will be no such block; OSError: the memory could not be made."""

    def __init__(self, count: int) -> None:
        """count: of all blocks."""
        self.count = count
        self._made: list[tuple[int, int]] = []  # of each: its offset, and its address here
        self._has_ended = False
        self._changed = threading.Condition()  # protects these two

    @property
    def has_ended(self) -> bool:
        """Whether no more memory is made, and no block is to be filled any more."""
        return self._has_ended

    def add(self, offset: int, address: int, size: int) -> None:
        """Add the memory of the next allocation."""
        with self._changed:
            self._made += [(offset + at, address + at) for at in range(0, size, BLOCK_BYTES)]
            self._changed.notify_all()

    def end(self) -> None:
        """Let nothing wait for memory any more."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def __getitem__(self, number: int) -> tuple[int, int]:
        """Return the block's offset and address.  The wait ends with the process that makes the memory, or with `end`."""
        if number >= self.count:
            raise IndexError(f"block {number} of {self.count}")
        with self._changed:
            self._changed.wait_for(lambda: number < len(self._made) or self._has_ended)
            if number >= len(self._made):
                raise OSError("not all of the arena's memory was made")
            return self._made[number]
