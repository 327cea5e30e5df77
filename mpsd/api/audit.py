"""The audit: every change that was asked for on the socket, by whom, and what became of it.

    audit.log           what operators changed                     every line
    audit-users.log     what other users changed                   of each user so many bytes at once and a second
    audit-refused.log   what was refused, to anybody               the same, less

One line of JSON each, mode 0640, and an event of mpsd's own log.  The files are apart so that no user's calls rotate an
operator's changes out; lines beyond a user's rate are counted, and the count is written.  None of it can hold the daemon up:
a full or hung disk costs lines, which are counted too (sink.py).  Prose: docs/operating.md, "Logs".
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any

import structlog

from mpsd.api.authority import Peer
from mpsd.log import rotation
from mpsd.log_options import Log
from mpsd.policy.rates import Rate, Rates
from mpsd.sink import LogFile, Sink
from mpsd.syslog import Severity, send_lines

log = structlog.get_logger()
_MODE = 0o640  # who does what is not everybody's business
_MOST_CHARACTERS = 4096  # of what was asked, and of what became of it
DONE = "done"


class Trail(Enum):
    """Of which file a line is."""

    OPERATORS = "audit.log"
    USERS = "audit-users.log"
    REFUSED = "audit-refused.log"


# In bytes.  A user who changes things without pause writes 11 MB a day: with the defaults of `log.max_bytes` and `log.kept`,
# 256 MiB, it takes three weeks of that until a line of another user's is gone.
_RATES = {
    Trail.USERS: Rate(burst=1 << 20, per_second=128),
    Trail.REFUSED: Rate(burst=1 << 18, per_second=64),
}
_SEVERITIES = {
    Trail.OPERATORS: Severity.NOTICE,
    Trail.USERS: Severity.NOTICE,
    Trail.REFUSED: Severity.INFORMATIONAL,
}


class Audit:
    """Guards that each change has its line, and that no user takes more than their share of the files."""

    def __init__(
        self, files: Mapping[Trail, LogFile], syslog_path: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """syslog_path: empty for none."""
        self._files, self._clock = files, clock
        self._sinks = {trail: [_sink(file.append)] for trail, file in files.items()}
        for trail in files if syslog_path else ():
            self._sinks[trail].append(_sink(partial(send_lines, syslog_path, _SEVERITIES[trail])))
        self._rates = {trail: Rates(rate) for trail, rate in _RATES.items()}

    @property
    def lost(self) -> int:
        """Lines that could not be written since the start."""
        return sum(sink.lost for sinks in self._sinks.values() for sink in sinks)

    def record(self, peer: Peer, method: str, what: Mapping[str, Any], outcome: str, *, is_refused: bool = False) -> None:
        """outcome: DONE, or the words of the refusal."""
        outcome = outcome if len(outcome) <= _MOST_CHARACTERS else f"{outcome[:_MOST_CHARACTERS]}..."
        facts = {"uid": peer.uid, "pid": peer.pid, "method": method, "what": _cut(what), "outcome": outcome}
        log.info("audit", **facts)
        line = _line({"event": "refusal" if is_refused else "change", **facts})
        trail = Trail.REFUSED if is_refused else Trail.OPERATORS if peer.is_operator else Trail.USERS
        if peer.is_operator or self._rates[trail].allows(peer.uid, self._clock(), len(line)):
            self._put(trail, line)

    def configure(self, settings: Log) -> None:
        """Put the rotation in force, after each reload; where lines go is fixed when the trails are opened."""
        for file in self._files.values():
            file.rotation = rotation(settings)
        self.tell_suppressed()

    def tell_suppressed(self) -> None:
        """Write how many lines of which user were not written, because there were too many."""
        for trail, rates in self._rates.items():
            for uid, lines in rates.take_suppressed().items():
                self._put(trail, _line({"event": "lines_suppressed", "uid": uid, "lines": lines}))

    def close(self) -> None:
        """Write what waits, under a deadline."""
        self.tell_suppressed()
        for sinks in self._sinks.values():
            for sink in sinks:
                sink.close()

    def _put(self, trail: Trail, line: bytes) -> None:
        for sink in self._sinks[trail]:
            sink.put(line)


def open_audit(log_directory: str, settings: Log) -> Audit:
    """Never fails: what cannot be written is counted."""
    files = {trail: LogFile(os.path.join(log_directory, trail.value), rotation(settings), _MODE) for trail in Trail}
    return Audit(files, settings.audit_socket)


def _sink(write: Callable[[bytes], None]) -> Sink:
    return Sink(write, lambda lines: _line({"event": "lines_lost", "lines": lines}))


def _line(facts: Mapping[str, Any]) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return (json.dumps({"time": now, **facts}, default=repr, separators=(",", ":")) + "\n").encode()


def _cut(what: Mapping[str, Any]) -> Mapping[str, Any] | str:
    text = json.dumps(what, default=repr)
    return what if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
