"""Record the progress of each relayed connection in a file that outlives mpsd: two bytes a connection, one for each direction.

    FRESH   nothing has been passed on: another mpsd may begin with it anywhere
    WHOLE   all that was taken from one side has been given to the other: another mpsd may continue from here
    TORN    a message is being passed on: another mpsd cannot know whether it arrived

The bytes are in memory that is shared with the file, so writing costs nothing and `kill -9` loses nothing.
Prose: docs/restart.md.
"""

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

FRESH, WHOLE, TORN = 0, 1, 2
TO_DOMAIN, TO_CLIENT = 0, 1


class ProgressMemory(Struct):
    """Where the bytes are now."""

    bytes: mmap.mmap | bytearray


class Track(Struct):
    """Guards the two bytes of one connection.  Without HandshakeProgress they are not in the file."""

    slot: int = 0
    _memory: ProgressMemory = field(default_factory=lambda: ProgressMemory(bytearray(2)))

    @contextmanager
    def passing(self, direction: int) -> Iterator[None]:
        """Mark the sending of a message and its removal from the queue; if the sending fails, it is still in the queue."""
        at = 2 * self.slot + direction
        before, self._memory.bytes[at] = self._memory.bytes[at], TORN
        after = before
        try:
            yield
            after = WHOLE
        finally:
            self._memory.bytes[at] = after

    @property
    def has_begun(self) -> bool:
        return self._states != bytes([FRESH, FRESH])

    @property
    def is_torn(self) -> bool:
        return TORN in self._states

    @property
    def _states(self) -> bytes:
        return bytes(self._memory.bytes[2 * self.slot : 2 * self.slot + 2])


class HandshakeProgress:
    """Guards that no two connections share a slot."""

    def __init__(self, path: Path, slots: int) -> None:
        self._path = path
        bytes_ = _map(path, 2 * slots)
        self._memory = ProgressMemory(bytes_)
        self._free = list(range(len(bytes_) // 2 - 1, -1, -1))

    def move(self) -> None:
        """Continue in a new file, after another process removed the file.  Raises OSError."""
        before = self._memory.bytes
        new = _map(self._path, len(before))
        new[: len(before)] = before[:]
        self._memory.bytes = new

    def begin(self) -> Track:
        """Return a track for a new connection.  The file has a slot for each connection that may be open."""
        track = Track(self._free.pop(), self._memory)
        self._memory.bytes[2 * track.slot : 2 * track.slot + 2] = bytes([FRESH, FRESH])
        return track

    def resume(self, slots: Iterable[int]) -> dict[int, Track]:
        """Return the tracks of the connections that an earlier mpsd left, by slot; call it before any `begin`."""
        kept = {slot: Track(slot, self._memory) for slot in slots if 2 * slot + 1 < len(self._memory.bytes)}
        self._free = [slot for slot in self._free if slot not in kept]
        return kept

    def end(self, track: Track) -> None:
        self._free.append(track.slot)


def _map(path: Path, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = max(size, os.fstat(descriptor).st_size)  # an earlier mpsd may have been allowed more
        os.posix_fallocate(descriptor, 0, size)  # a page that a full disk has no room for would be a SIGBUS
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
