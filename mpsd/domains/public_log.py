"""The public control.log and server.log: mpsd's own lines and every domain's, in the vendor's format.

A domain's line keeps its stamp and its writer's pid, and ends in ` (domain NAME)`: callers search these files for the
vendor's words, and none of them reads a line's end.
"""

import math
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from mpsd.domains.domain import Domain
from mpsd.domains.rules.log_lines import LogLine
from mpsd.errors import UnusablePath
from mpsd.host.trusted_directories import PUBLIC_MODE, open_directory, open_file
from mpsd.log.sink import Background, write_all
from mpsd.model.visible_text import visible

_MODE = 0o640  # with the lines of all users; and who may read a file can keep its lock (decision 026)
_NAMES = ("control.log", "server.log")
_AGAIN_SECONDS = 5.0  # between attempts to open a file that could not be opened


class PublicLog:
    """Guards the two files and the order of their lines.

    A thread writes them: a slow disk, or a slow reader of standard output, delays no task.  A full or broken disk, or a full
    queue, loses lines (counted).
    """

    def __init__(self, directory: Path, public_pipe: str, echo: bool, tell: Callable[..., None]) -> None:
        self._directory = directory
        self._public_pipe = public_pipe
        self._echo = echo  # -f: the vendor prints its log on standard output
        self._tell = tell
        self._files: dict[str, int] = {}
        self.lost = 0  # lines since the files could last be opened; written under the lock
        self._lock = threading.Lock()  # protects `lost`; no other lock is taken while it is held
        self._tried_at = -math.inf
        self._troubles: dict[str, str] = {}  # the logged reasons why files could not be opened
        self._reopen()
        self._must_reopen = threading.Event()
        self._background = Background("mpsd-public-log", self._do, self._close_files)

    def reopen(self) -> None:
        """Open the files again soon, for log rotation (SIGHUP); log why one cannot be opened, also if it was logged before."""
        self._must_reopen.set()
        self._background.put(lambda: None)

    def close(self) -> None:
        """Write the queued lines, for some seconds at most, and close the files."""
        self._background.close()

    def write(self, text: str) -> None:
        """Write a line of mpsd's own, as the vendor's control daemon would write it."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
        head = f"[{stamp} Control {os.getpid():5d}] "
        self._append("control.log", "\n".join(head + line for line in text.rstrip("\n").split("\n")))

    def publish(self, domain: Domain, name: str, line: LogLine | str) -> None:
        """Write a line of a domain's log."""
        if isinstance(line, LogLine):
            text = line.text.replace(str(domain.control.pipe_directory), self._public_pipe)
            line = f"[{line.stamp} {line.source} {line.pid:5d}] {text}"
        self._append(name, f"{line} (domain {domain.name})")

    def when_written(self, act: Callable[[], None]) -> None:
        """Call this in the event loop once the thread has written, or lost, the lines before; never if the queue is full."""
        self._background.put(partial(_act_in_loop, trio.lowlevel.current_trio_token(), act))

    def _append(self, name: str, line: str) -> None:
        data = (visible(line, keep="\n\t") + "\n").encode(errors="replace")  # it may contain a client's name
        if not self._background.put(partial(self._write, name, data)):
            self._lose()

    def _lose(self) -> None:
        with self._lock:
            self.lost += 1

    # -- the thread --------------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], None]) -> None:
        if self._must_reopen.is_set():
            self._must_reopen.clear()
            self._troubles = {}
            self._reopen()
        work()

    def _write(self, name: str, data: bytes) -> None:
        if self._echo:
            with suppress(OSError):
                write_all(sys.stdout.fileno(), data)
        if self._is_due(name):
            self._reopen()
        file = self._files.get(name)
        try:
            if file is None or os.write(file, data) != len(data):
                self._lose()
        except OSError:
            self._lose()

    def _reopen(self) -> None:
        self._tried_at = time.monotonic()
        self._close_files()
        troubles = self._open()
        for file, why in troubles.items():
            if self._troubles.get(file) != why:  # once, and not at each attempt
                self._tell("log.unwritable", file=file, why=why)
        self._troubles = troubles
        with self._lock:
            lost, self.lost = self.lost, self.lost if troubles else 0
        if lost and not troubles:
            self._tell("log.lines_lost", file=str(self._directory), lines=lost)

    def _open(self) -> dict[str, str]:
        """Open what can be opened; return why the rest cannot, by its path."""
        try:
            directory = open_directory(self._directory, make_mode=PUBLIC_MODE, may_be_shared=True).descriptor
        except UnusablePath as exc:
            return {str(self._directory): str(exc)}
        troubles = {}
        for name in _NAMES:
            try:
                self._files[name] = file = open_file(directory, name, os.O_WRONLY | os.O_APPEND, _MODE)
            except OSError as exc:
                troubles[str(self._directory / name)] = exc.strerror or str(exc)
                continue
            with suppress(OSError):  # not mpsd's own file: lines can be written to it
                if (mode := stat.S_IMODE(os.fstat(file).st_mode)) & ~_MODE:  # an earlier mpsd made it 0644
                    os.fchmod(file, mode & _MODE)
        os.close(directory)
        return troubles

    def _is_due(self, name: str) -> bool:
        """Whether the file is to be opened again: it was removed, or could not be opened a while ago."""
        if (file := self._files.get(name)) is not None:
            return _is_removed(file)
        return time.monotonic() >= self._tried_at + _AGAIN_SECONDS

    def _close_files(self) -> None:
        while self._files:
            with suppress(OSError):  # a file server reports the lines that it lost; the number is free in any case
                os.close(self._files.popitem()[1])


def _act_in_loop(loop: trio.lowlevel.TrioToken, act: Callable[[], None]) -> None:
    with suppress(trio.RunFinishedError):
        loop.run_sync_soon(act)


def _is_removed(file: int) -> bool:
    """Return whether the file has no name, so that its lines would be lost.  After a rotation it has one until SIGHUP."""
    try:
        return os.fstat(file).st_nlink == 0
    except OSError:
        return True  # a file server has removed it (ESTALE)
