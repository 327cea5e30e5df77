"""The destination of mpsd's own log: events are text for a person on a terminal, or JSON.

Modules log through mpsd/logger.py; sink.py writes lines to the disk; docs/operating.md explains the events to an operator.
"""

import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from mpsd.config.log_options import LogOptions
from mpsd.fairness.rates import OTHERS, Rate, Rates
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.log.sink import LogFile, Rotation, Sink, write_all
from mpsd.logger import Facts, log
from mpsd.model.visible_text import visible

FILE_NAME = "mpsd.log"

_COLOURS = {"debug": "\033[2m", "info": "\033[32m", "warning": "\033[33m", "error": "\033[31m", "critical": "\033[31;1m"}
# Limits on the lines of one event: for each user who is not an operator; and in total if the event names no user.  A dozen
# events name one, in 300 bytes: one user writes at most some 30 MB a day, where three processes wrote 18 MB in one storm.
_USERS_RATE = Rate(burst=60, per_second=0.1)
_ANYBODYS_RATE = Rate(burst=1000, per_second=5)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@%+,=-]+")

Render = Callable[[Facts], str]


class Journal:
    """The open log of this process; `open_journal` makes it; it is closed last."""

    def __init__(self, render: Render, write: Callable[[bytes], None], file: LogFile | None, ranges: UidRanges) -> None:
        """ranges: whose uids count as one user."""
        self._render, self._file, self._share_of = render, file, ranges.share_of
        self._sink = Sink(write, note=self._tell_lost)
        self._operators = {0, os.geteuid()}
        self._users, self._anybodys = Rates(_USERS_RATE), Rates(_ANYBODYS_RATE)
        self._counting = threading.Lock()  # protects both of these; no other lock is taken while it is held

    @property
    def lost(self) -> int:
        """The number of lines that could not be written since the start."""
        return self._sink.lost

    def configure(self, settings: LogOptions) -> None:
        """Apply level and size, now and after each reload; the format is fixed when the log is opened."""
        if self._file:
            self._file.rotation = rotation(settings)
        self.tell_suppressed()
        log.write, log.least = self._write, settings.level

    def close(self) -> None:
        """Write the queued lines, under a deadline; later events are lost."""
        self.tell_suppressed()
        self._sink.close()

    def tell_suppressed(self) -> None:
        """Write for each event how many lines the limits of one user, or of all, suppressed."""
        with self._counting:
            users, anybodys = self._users.take_suppressed(), self._anybodys.take_suppressed()
        for event, facts, lines in (*_by_event(users), *_by_event(anybodys)):
            self._sink.put(self._line("warning", "log.suppressed", {"of": event, **facts, "lines": lines}))

    def _write(self, level: str, event: str, facts: Facts) -> None:
        """Queue the line of an event, unless it is above a limit."""
        if self._is_allowed(level, event, facts):
            self._sink.put(self._line(level, event, facts))

    def _is_allowed(self, level: str, event: str, facts: Facts) -> bool:
        """Return False, and count the line, if it is above a limit.

        Lines that operators cause, or that end mpsd, always pass.
        """
        uid = facts.get("uid", facts.get("owner_uid"))
        if uid in self._operators or level == "critical":
            return True
        share = uid if uid is None else self._share_of(uid)
        with self._counting:
            rates = self._anybodys if uid is None else self._users
            return rates.allows((event, share), time.monotonic())

    def _line(self, level: str, event: str, facts: Facts) -> bytes:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if facts.pop("exc_info", False):
            facts["exception"] = traceback.format_exc().rstrip("\n")
        return (self._render({"time": now, "level": level, "event": event, **facts}) + "\n").encode("utf-8", "backslashreplace")

    def _tell_lost(self, lines: int) -> bytes:
        return self._line("warning", "log.lines_lost", {"lines": lines})


def open_journal(
    settings: LogOptions, *, foreground: bool, log_directory: str, terminal: TextIO, ranges: UidRanges = NO_RANGES
) -> Journal:
    """Open the log: standard error in the foreground, LOG_DIR/mpsd.log in the background.

    Never fails: lines that cannot be written are counted.
    """
    colours = foreground and terminal.isatty()
    human = settings.format == "human" or (settings.format == "auto" and colours)
    render: Render = (lambda facts: render_human(facts, colours=colours)) if human else render_json
    if foreground:
        descriptor = terminal.fileno()
        journal = Journal(render, lambda line: write_all(descriptor, line), None, ranges)
    else:
        file = LogFile(os.path.join(log_directory, FILE_NAME), rotation(settings))
        journal = Journal(render, file.append, file, ranges)
    journal.configure(settings)
    return journal


def rotation(settings: LogOptions) -> Rotation:
    """Return the rotation of each file that mpsd rotates itself."""
    return Rotation(settings.max_bytes, settings.max_days, settings.kept)


def _by_event(counts: Mapping[Hashable, int]) -> Iterator[tuple[str, dict[str, object], int]]:
    """Yield the event, the user as a fact, and the number of lines."""
    for key, lines in counts.items():
        event, uid = key if isinstance(key, tuple) else (OTHERS, None)
        yield event, {} if uid is None else {"uid": uid}, lines


def render_json(facts: Facts) -> str:
    """Render one object per line, time first."""
    return json.dumps(facts, default=repr, separators=(",", ":"))


def render_human(facts: Facts, *, colours: bool) -> str:
    """Render time, level, event, then the facts; an untrusted value cannot move the cursor or forge a line."""
    rest = dict(facts)
    time, level, event = rest.pop("time"), rest.pop("level"), rest.pop("event")
    trace = rest.pop("exception", "")
    dim, bold, colour, plain = ("\033[2m", "\033[1m", _COLOURS.get(level, ""), "\033[0m") if colours else ("",) * 4
    words = [f"{dim}{key}={plain}{_show(value)}" for key, value in rest.items()]
    clock = datetime.fromisoformat(time).astimezone().strftime("%H:%M:%S.%f")[:-3]
    line = " ".join([f"{dim}{clock}{plain} {colour}{level:<7}{plain} {bold}{event}{plain}", *words])
    return line + "".join(f"\n    {each}" for each in map(visible, str(trace).splitlines()))


def _show(value: Any) -> str:
    if isinstance(value, str):
        return value if _PLAIN_WORD.fullmatch(value) else json.dumps(value, ensure_ascii=not value.isprintable())
    return repr(value) if value is None or isinstance(value, int | float) else json.dumps(value, default=repr)
