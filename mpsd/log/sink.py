"""Write log lines to a file or a descriptor, by a thread, so that a full disk or a stuck reader blocks no task.

The content of the lines is not known here.  Lines that cannot be kept are counted; the count is written when writing works
again.
"""

import math
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from mpsd.errors import UnusablePath
from mpsd.host.file_identity import identity_of
from mpsd.host.trusted_directories import PUBLIC_MODE, open_directory, open_file

QUEUED_LINES = 10_000  # some megabytes at worst; more means that the thread has written nothing for seconds
CLOSE_SECONDS = 2.0
_DAY_SECONDS = 86400
_MODE = 0o640  # of a file that it creates: other users must not read what a user does, nor the names of others' arenas
T = TypeVar("T")


class Background(Generic[T]):
    """Guards that `work` gets items from any thread in their order, one after the other, in a thread that may block."""

    def __init__(self, name: str, work: Callable[[T], None], finish: Callable[[], None] = lambda: None) -> None:
        """finish: called in the thread after the last item."""
        self._work, self._finish = work, finish
        self._queue: queue.Queue[T | None] = queue.Queue(QUEUED_LINES)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> bool:
        """Queue one item; False if the queue is full.  Never blocks."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Let the thread finish the queued items, for at most CLOSE_SECONDS."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:  # for ever: this is the thread's life
            self._work(item)
        self._finish()


class Sink:
    """Takes lines from any thread without ever blocking or raising.

    Guards the order of the lines, and that written + lost lines = lines given.  `note` makes the line that reports lost ones.
    """

    def __init__(self, write: Callable[[bytes], None], note: Callable[[int], bytes]) -> None:
        self.lost = 0  # written under the lock, by callers and by the thread
        self._write, self._note = write, note
        self._lock = threading.Lock()  # protects `lost`; no other lock is taken while it is held
        self._untold = 0
        self._background = Background("mpsd-log", self._write_or_lose)

    def put(self, line: bytes) -> None:
        """Queue one line, its newline included."""
        if not self._background.put(line):
            self._lose(1)

    def close(self) -> None:
        """Write the queued lines, for at most CLOSE_SECONDS."""
        self._background.close()

    def _write_or_lose(self, line: bytes) -> None:
        with self._lock:
            untold, self._untold = self._untold, 0
        try:
            self._write(self._note(untold) + line if untold else line)
        except OSError:
            self._lose(1, again=untold)

    def _lose(self, lines: int, again: int = 0) -> None:
        with self._lock:
            self.lost += lines
            self._untold += lines + again


class Rotation(Struct, frozen=True):
    """When a log file is renamed, and how many such files are kept: FILE.1, the newest, to FILE.N."""

    max_bytes: int = 0  # 0: however large it is
    max_days: int = 0  # 0: however old it is
    kept: int = 1

    def is_due(self, size: int, more: int, written: float, now: float, uptime: float) -> bool:
        """Return whether to rotate before `more` bytes are added to a file of `size` bytes, last written at `written`.

        uptime: the seconds since this process rotated the file, by a clock that is never set; infinite if it did not.  A clock
        that is set back and forth, or that of a file server which is behind, would otherwise rotate all kept files out.
        """
        if not size:
            return False
        period = self.max_days * _DAY_SECONDS
        is_old = bool(period) and now // period > written // period and uptime >= period / 2
        return is_old or bool(self.max_bytes and size + more > self.max_bytes)


class LogFile:
    """The writer of one log file that others may rename or remove; only the sink's thread calls it.

    Guards that a line goes to the file that has the name now, and that the file is rotated.
    """

    def __init__(self, path: str, rotation: Rotation) -> None:
        self.path = path
        self._name = os.path.basename(path)
        self.rotation = rotation  # a reload writes it from the main thread
        self._descriptor = -1
        self._identity = (0, 0)
        self._bytes, self._written = 0, 0.0
        self._rotated_at = -math.inf  # time.monotonic()
        self._is_cut = False  # the last line lacks its end

    def append(self, line: bytes) -> None:
        """Append one line; raise OSError if it could not be written."""
        if not self._is_ours():
            self._reopen()
        uptime = time.monotonic() - self._rotated_at
        if self.rotation.is_due(self._bytes, len(line), self._written, time.time(), uptime):
            self._rotate()
            self._rotated_at = time.monotonic()
            self._reopen()
        start = b"\n" if self._is_cut else b""
        self._is_cut = True
        write_all(self._descriptor, start + line)
        self._is_cut = False

    def _is_ours(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        self._bytes, self._written = found.st_size, found.st_mtime  # another process may have truncated it
        return identity_of(found) == self._identity

    def _rotate(self) -> None:
        names = [self._name, *(f"{self._name}.{number}" for number in range(1, max(self.rotation.kept, 1) + 1))]
        with self._directory() as directory:
            for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
                with suppress(FileNotFoundError):
                    os.replace(newer, older, src_dir_fd=directory, dst_dir_fd=directory)

    def _reopen(self) -> None:
        with self._directory() as directory:
            descriptor = open_file(directory, self._name, os.O_WRONLY | os.O_APPEND, _MODE)
        if self._descriptor >= 0:
            with suppress(OSError):  # a file server reports the lines that it lost; the number is free in any case
                os.close(self._descriptor)
        found = os.fstat(descriptor)
        self._descriptor, self._bytes, self._written = descriptor, found.st_size, found.st_mtime
        self._identity = identity_of(found)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        """Open the directory, creating it if it was removed.  Raises OSError.

        It is judged each time, since a user may have replaced it (host/trusted_directories.py).
        """
        try:
            directory = open_directory(Path(self.path).parent, make_mode=PUBLIC_MODE, may_be_shared=True).descriptor
        except UnusablePath as exc:
            raise OSError(f"{self.path} cannot be opened: {exc}") from None
        try:
            yield directory
        finally:
            os.close(directory)


def write_all(descriptor: int, line: bytes) -> None:
    """Write the whole line, waiting as long as the reader takes; raise OSError.  A line cut short counts as lost."""
    written = 0
    while written < len(line):
        try:
            written += os.write(descriptor, line[written:])
        except BlockingIOError:  # a terminal that another process made non-blocking
            select.select([], [descriptor], [])  # forever: only the sink's thread waits
