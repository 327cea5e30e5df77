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

from mpsd.disk_room import keep_room
from mpsd.domains.domain import Domain
from mpsd.domains.inotify import DirectoryWatch
from mpsd.domains.log_files import LogFile
from mpsd.domains.log_lines import LogLine, News, OwnCommands, parse_line, read_news
from mpsd.errors import VendorFailed
from mpsd.policy.rates import Rate, Rates

log = structlog.get_logger()
LOG_NAMES = ("control.log", "server.log")
_POLL_SECONDS = 0.25
_ROOM_BYTES = 64 << 10  # on the disk for each log: 400 starts; a full disk then keeps no news from mpsd
_RATE = Rate(burst=4 << 20, per_second=256 << 10)  # bytes of one log: 20,000 of the vendor's lines at once, then 1,200 a second
_LINE_COST = 100  # bytes that a line counts beside its text: what it costs however short it is
_TELL_SECONDS = 10.0
_BURST_SECONDS = 0.01  # lines come in bursts; reading each at once would slow the handshakes that cause them


class Positions(Protocol):
    """The read position in each log, kept across restarts of mpsd."""

    def save_log_position(self, path: str, position: int) -> None: ...
    def log_position(self, path: str) -> int | None: ...


async def keep_log_room(domain: Domain) -> None:
    """Reserve disk space for the logs of a new vendor daemon: mpsd identifies clients by them.  Raise VendorFailed."""
    for name in LOG_NAMES:
        if await trio.to_thread.run_sync(keep_room, domain.control.log_directory / name, _ROOM_BYTES) == errno.ENOSPC:
            raise VendorFailed(f"the disk of the state directory is full: no room for {domain.control.log_directory / name}")


async def follow_logs(
    domain: Domain,
    positions: Positions,
    publish: Callable[[Domain, str, LogLine | str], None],
    hear: Callable[[Domain, News], None],
) -> None:
    """Follow the logs until cancelled, or until they cannot be read: then mpsd only asks the domain now and then.

    Every line is published once, in its file's order, except those of mpsd's own commands.  hear: gets the news of the lines.
    """
    try:
        await _follow(domain, positions, publish, hear)
    except OSError as exc:
        log.error("logs.unreadable", domain=domain.name, why=str(exc), effect="its faults are noticed late")


async def _follow(
    domain: Domain,
    positions: Positions,
    publish: Callable[[Domain, str, LogLine | str], None],
    hear: Callable[[Domain, News], None],
) -> None:
    directory = domain.control.log_directory
    own = OwnCommands()
    with contextlib.ExitStack() as stack:
        changed = _watch(directory, stack)
        files = [
            (_Flow(domain, name), LogFile(directory / name, positions.log_position(str(directory / name)) or 0))
            for name in LOG_NAMES
        ]
        for _, file in files:
            stack.callback(file.close)
        rooms = {name: _Room(directory / name) for name in LOG_NAMES}
        while True:
            has_more = is_flooded = False
            for flow, file in files:
                before, path = file.position, directory / flow.name
                has_more |= _read(flow, file, own, publish, hear)
                is_flooded |= flow.left_out > 0
                if file.position != before:
                    positions.save_log_position(str(path), file.position)
                await rooms[flow.name].follow(file.position)
                flow.tell(publish)
            if not has_more:
                with trio.move_on_after(_TELL_SECONDS if is_flooded else math.inf):
                    await changed()
            # With limits of each client's own, clients wait for what the lines say.
            await trio.sleep(0 if domain.guard.is_on and not is_flooded else _BURST_SECONDS)


class _Flow:
    """Guards that the lines of one log take a bounded part of mpsd's time and of the public log, and that those left out are
    counted there."""

    def __init__(self, domain: Domain, name: str) -> None:
        self.domain, self.name = domain, name
        self.left_out = 0  # lines, not told yet
        self._rates = Rates(_RATE)
        self._told_at = -math.inf

    def allows(self, text: str) -> bool:
        return self._rates.allows(self.name, trio.current_time(), len(text) + _LINE_COST)

    def tell(self, publish: Callable[[Domain, str, LogLine | str], None]) -> None:
        """Report the lines that were left out, now and then."""
        if not self.left_out or trio.current_time() < self._told_at + _TELL_SECONDS:
            return
        publish(self.domain, self.name, f"{self.left_out} lines are left out here: they came too fast")
        effect = "mpsd asks the vendor daemon what they may have told"
        log.warning("logs.flooded", domain=self.domain.name, file=self.name, lines=self.left_out, effect=effect)
        self.left_out, self._told_at = 0, trio.current_time()


class _Room:
    """Guards that a log takes a bounded part of the disk, and has room for more lines when the disk is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = -_ROOM_BYTES

    async def follow(self, position: int) -> None:
        """Keep the room; all before the position has been read, and has no other reader."""
        is_due = position - self._position >= _ROOM_BYTES // 2 or position < self._position
        if is_due and not await trio.to_thread.run_sync(keep_room, self._path, _ROOM_BYTES, position):
            self._position = position


def _watch(directory: Path, stack: contextlib.ExitStack) -> Callable[[], Awaitable[None]]:
    """Return a function that waits for a change; it polls if the kernel has no watch left."""
    try:
        watch = DirectoryWatch(directory)
    except OSError as exc:
        log.warning("logs.polled", directory=str(directory), why=str(exc), every_seconds=_POLL_SECONDS)
        return functools.partial(trio.sleep, _POLL_SECONDS)
    stack.callback(watch.close)
    return watch.changed


def _read(
    flow: _Flow,
    file: LogFile,
    own: OwnCommands,
    publish: Callable[[Domain, str, LogLine | str], None],
    hear: Callable[[Domain, News], None],
) -> bool:
    """Take as many lines as one turn of the event loop has time for; return whether there may be more."""
    lines = file.read_lines()
    for number, text in enumerate(lines):
        if not flow.allows(text):
            flow.left_out += len(lines) - number + file.skip_lines()
            flow.domain.mark_stale()
            break
        _take(flow.domain, flow.name, text, own, publish, hear)
    return bool(lines)


def _take(
    domain: Domain,
    name: str,
    text: str,
    own: OwnCommands,
    publish: Callable[[Domain, str, LogLine | str], None],
    hear: Callable[[Domain, News], None],
) -> None:
    line = parse_line(text)
    if line is None:
        publish(domain, name, text)
        return
    if name == "control.log" and own.is_own(line):
        return
    publish(domain, name, line)
    if is_of_file(line, name) and (news := read_news(line)):
        hear(domain, news)


def is_of_file(line: LogLine, name: str) -> bool:
    """Return whether such a line belongs into this file: servers write into server.log, by a FIFO, and not into control.log."""
    return (line.source == "Control") == (name == "control.log")
