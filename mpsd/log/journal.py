"""mpsd's own log: structlog set up once; events are text for a person on a terminal, or JSON.

An event is a constant, facts are keys: ``log.info("client.admitted", pid=pid)``; a logger comes from `structlog.get_logger()`.
sink.py writes lines to the disk; docs/operating.md explains the events to an operator.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict

from mpsd.config.log_options import LogOptions
from mpsd.fairness.rates import OTHERS, Rate, Rates
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.log.sink import LogFile, Rotation, Sink, write_all
from mpsd.model.visible_text import visible

FILE_NAME = "mpsd.log"
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_COLOURS = {"debug": "\033[2m", "info": "\033[32m", "warning": "\033[33m", "error": "\033[31m", "critical": "\033[31;1m"}
# Limits on the lines of one event: for each user; for root and mpsd's own user, and in total if it names no user.  A dozen
# events name one, in 300 bytes: one user writes at most some 30 MB a day, where three processes wrote 18 MB in one storm.
_USERS_RATE = Rate(burst=60, per_second=0.1)
_ANYBODYS_RATE = Rate(burst=1000, per_second=5)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@%+,=-]+")

Render = Callable[[EventDict], str]


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
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                self._limit,
                _add_time_and_level,
                structlog.processors.format_exc_info,
                lambda logger, method, facts: self._encode(facts),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
            logger_factory=lambda *names: _SinkLogger(self._sink),
            cache_logger_on_first_use=False,  # a reload changes the level of loggers made long before
        )

    def close(self) -> None:
        """Write the queued lines, under a deadline; later events are lost."""
        self.tell_suppressed()
        self._sink.close()

    def tell_suppressed(self) -> None:
        """Write for each event how many lines the limits of one user, or of all, suppressed."""
        with self._counting:
            users, anybodys = self._users.take_suppressed(), self._anybodys.take_suppressed()
        for event, facts, lines in (*_by_event(users), *_by_event(anybodys)):
            told = {"event": "log.suppressed", "of": event, **facts, "lines": lines}
            self._sink.put(self._encode(_add_time_and_level(None, "warning", told)))

    def _limit(self, logger: object, method: str, facts: EventDict) -> EventDict:
        """Raise DropEvent for a line above the limit, and count it.

        Lines that end mpsd always pass.  Lines with an operator's uid have the higher rate and no more: a container's root has
        this uid too.
        """
        event, uid = facts.get("event", ""), facts.get("uid", facts.get("owner_uid"))
        if method == "critical":
            return facts
        share = uid if uid is None else self._share_of(uid)
        with self._counting:
            rates = self._anybodys if uid is None or uid in self._operators else self._users
            is_allowed = rates.allows((event, share), time.monotonic())
        if not is_allowed:
            raise structlog.DropEvent
        return facts

    def _encode(self, facts: EventDict) -> bytes:
        return (self._render(facts) + "\n").encode("utf-8", "backslashreplace")

    def _tell_lost(self, lines: int) -> bytes:
        return self._encode(_add_time_and_level(None, "warning", {"event": "log.lines_lost", "lines": lines}))


class _SinkLogger:
    """The last step of structlog: every level goes to the same sink."""

    def __init__(self, sink: Sink) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = self.msg = sink.put


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


def render_json(facts: EventDict) -> str:
    """Render one object per line, time first."""
    return json.dumps(facts, default=repr, separators=(",", ":"))


def render_human(facts: EventDict, *, colours: bool) -> str:
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


def _add_time_and_level(logger: object, method: str, facts: EventDict) -> EventDict:
    level = "error" if method == "exception" else method
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now, "level": level, "event": facts.pop("event", ""), **facts}
