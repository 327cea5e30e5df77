"""Follow a domain's private logs: publish their lines, and update the view of the domain."""

import contextlib
import errno
import functools
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.rules.log_lines import LogLine, News, OwnCommands, parse_line, read_news
from mpsd.domains.store import SqliteStore
from mpsd.errors import VendorFailed
from mpsd.fairness.rates import Rate, Rates
from mpsd.host.growing_file import GrowingFile
from mpsd.host.inotify import DirectoryWatch
from mpsd.log.once import Once
from mpsd.storage.disk_room import keep_room
from mpsd.threads import run_in_thread

log = structlog.get_logger()
Hear = Callable[[Domain, News], None]
LOG_NAMES = ("control.log", "server.log")
_POLL_SECONDS = 0.25
_AGAIN_SECONDS = 5.0  # after the logs could not be read, as without a free descriptor
_ROOM_BYTES = 64 << 10  # on the disk for each log: 400 starts; mpsd then gets the news also when the disk is full
_RATE = Rate(burst=4 << 20, per_second=256 << 10)  # bytes of one log: 20,000 of the vendor's lines at once, then 1,200 a second
_LINE_COST = 100  # bytes that each line counts in addition to its text
_REPORT_SECONDS = 10.0
_BURST_SECONDS = 0.01  # lines come in bursts; reading each at once would slow the handshakes that cause them


class PublicLines(Protocol):
    """Takes the lines of domains; a thread writes them (public_log.py)."""

    def publish(self, domain: Domain, name: str, line: LogLine | str) -> None:
        """Take a line of the domain's log of that name."""

    def when_written(self, act: Callable[[], None]) -> None:
        """Call this in the event loop once the lines before are written."""


async def keep_log_room(domain: Domain) -> None:
    """Reserve disk space for the logs of a new vendor daemon: mpsd identifies clients by them.  Raise VendorFailed."""
    for name in LOG_NAMES:
        if await run_in_thread(keep_room, domain.control.log_directory / name, _ROOM_BYTES) == errno.ENOSPC:
            raise VendorFailed(f"the disk of the state directory is full: no room for {domain.control.log_directory / name}")


async def follow_logs(
    domain: Domain,
    positions: SqliteStore,
    public: PublicLines,
    hear: Hear,
) -> None:
    """Follow the logs until cancelled.  While they cannot be read, mpsd only asks the domain now and then.

    Every line is published once, in its file's order, except those of mpsd's own commands.  If mpsd is killed before it has
    noted that lines are written, the next mpsd publishes them again.  hear: called with the events that the lines report.
    """
    logged = Once()
    while True:
        try:
            await _follow(domain, positions, public, hear)
        except OSError as exc:
            if logged.is_new(str(exc)):
                log.error("logs.unreadable", domain=domain.name, why=str(exc), effect="its faults are noticed late")
            await trio.sleep(_AGAIN_SECONDS)


async def _follow(
    domain: Domain,
    positions: SqliteStore,
    public: PublicLines,
    hear: Hear,
) -> None:
    directory = domain.control.log_directory
    own = OwnCommands()
    with contextlib.ExitStack() as stack:
        changed = _watch(directory, stack)
        logs = [_Log(domain, name, positions, own, public, hear) for name in LOG_NAMES]
        for each in logs:
            stack.callback(each.close)
        while True:
            has_more = is_flooded = False
            for each in logs:
                before = each.file.position
                has_more |= each.read()
                is_flooded |= each.left_out > 0
                if each.file.position != before:
                    public.when_written(functools.partial(each.save, each.file.position))
                await each.room.follow(each.file.position)
                each.report_left_out()
            if not has_more:
                with trio.move_on_after(_REPORT_SECONDS if is_flooded else math.inf):
                    await changed()
            # Where each client has limits, clients wait for events in these lines.
            await trio.sleep(0 if domain.guard.is_on and not is_flooded else _BURST_SECONDS)


class _Log:
    """Guards that the lines of one log take a bounded part of mpsd's time and of the public log, and that omitted lines are
    counted there."""

    def __init__(
        self, domain: Domain, name: str, positions: SqliteStore, own: OwnCommands, public: PublicLines, hear: Hear
    ) -> None:
        self.path = domain.control.log_directory / name
        self.file = GrowingFile(self.path, positions.log_position(str(self.path)) or 0)
        self.room = _Room(self.path)
        self.left_out = 0  # lines since the last report
        self._domain, self._name, self._own = domain, name, own
        self._publish, self._hear = public.publish, hear
        self._positions, self._is_open = positions, True
        self._rates = Rates(_RATE)
        self._reported_at = -math.inf

    def close(self) -> None:
        self.file.close()
        self._is_open = False

    def save(self, position: int) -> None:
        """Note that the lines before this position are written; not once the domain may have ended and been forgotten."""
        if self._is_open:
            self._positions.save_log_position(str(self.path), position)

    def read(self) -> bool:
        """Take as many lines as one turn of the event loop has time for; return whether there may be more."""
        lines = self.file.read_lines()
        for number, text in enumerate(lines):
            if not self._rates.allows(self._name, trio.current_time(), len(text) + _LINE_COST):
                self.left_out += len(lines) - number + self.file.skip_lines()
                self._domain.mark_stale()
                break
            self._take(text)
        return bool(lines)

    def report_left_out(self) -> None:
        """Report the omitted lines, at most once in _REPORT_SECONDS."""
        if not self.left_out or trio.current_time() < self._reported_at + _REPORT_SECONDS:
            return
        self._publish(self._domain, self._name, f"{self.left_out} lines are left out here: they came too fast")
        effect = "mpsd asks the vendor daemon for the facts instead"
        log.warning("logs.flooded", domain=self._domain.name, file=self._name, lines=self.left_out, effect=effect)
        self.left_out, self._reported_at = 0, trio.current_time()

    def _take(self, text: str) -> None:
        line = parse_line(text)
        if line is None:
            self._publish(self._domain, self._name, text)
            return
        if self._name == "control.log" and self._own.is_own(line):
            return
        self._publish(self._domain, self._name, line)
        if is_of_file(line, self._name) and (news := read_news(line)):
            self._hear(self._domain, news)


class _Room:
    """Guards that a log takes a bounded part of the disk, and has room for more lines when the disk is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = -_ROOM_BYTES

    async def follow(self, position: int) -> None:
        """Keep the room; all before the position has been read, and mpsd is the only reader."""
        is_due = position - self._position >= _ROOM_BYTES // 2 or position < self._position
        if is_due and not await run_in_thread(keep_room, self._path, _ROOM_BYTES, position):
            self._position = position


def _watch(directory: Path, stack: contextlib.ExitStack) -> Callable[[], Awaitable[None]]:
    """Return a function that waits for a change; it polls if the kernel lets mpsd watch nothing more."""
    try:
        watch = DirectoryWatch(directory)
    except OSError as exc:
        log.warning("logs.polled", directory=str(directory), why=str(exc), every_seconds=_POLL_SECONDS)
        return functools.partial(trio.sleep, _POLL_SECONDS)
    stack.callback(watch.close)
    return watch.changed


def is_of_file(line: LogLine, name: str) -> bool:
    """Return whether such a line belongs into this file: servers write into server.log, by a FIFO, and not into control.log."""
    return (line.source == "Control") == (name == "control.log")
