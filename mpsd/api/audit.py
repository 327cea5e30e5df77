"""The audit log: every change that a caller requested on the socket, the caller, and the outcome.

    audit.log           changes by operators            every line
    audit-users.log     changes by other users          limited for each user: a burst, and bytes per second
    audit-refused.log   refused requests of all users   limited in the same way, to less

Each record is one line of JSON, and also an event of mpsd's own log.  The files are separate so that no user's calls rotate an
operator's changes out.  Lines above a user's rate are counted, and the count is written.  Auditing never blocks the
daemon: a full or hung disk loses lines, which are counted too (log/sink.py).  Prose: docs/operating.md, "Logs".
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
from mpsd.config.log_options import LogOptions
from mpsd.fairness.rates import Rate, Rates
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.log.journal import rotation
from mpsd.log.sink import LogFile, Sink
from mpsd.log.syslog import Severity, send_lines

log = structlog.get_logger()
_MOST_CHARACTERS = 4096  # of the request, and of its outcome
DONE = "done"


class Trail(Enum):
    """The file that a line goes to."""

    OPERATORS = "audit.log"
    USERS = "audit-users.log"
    REFUSED = "audit-refused.log"


# In bytes.  A user who changes things without pause writes 11 MB a day: with the defaults of `log.max_bytes` and `log.kept`,
# 256 MiB, another user's line survives three weeks of that, and more than a day of what all users together may write.
_RATES = {
    Trail.USERS: Rate(burst=1 << 20, per_second=128),
    Trail.REFUSED: Rate(burst=1 << 18, per_second=64),
}
_USERS_IN_TOTAL = 16  # all users together may write as much as so many
_SEVERITIES = {
    Trail.OPERATORS: Severity.NOTICE,
    Trail.USERS: Severity.NOTICE,
    Trail.REFUSED: Severity.INFORMATIONAL,
}


class Audit:
    """Guards that each change is recorded, and that no user takes more than their share of the files."""

    def __init__(
        self,
        files: Mapping[Trail, LogFile],
        syslog_path: str = "",
        ranges: UidRanges = NO_RANGES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """syslog_path: the path of the syslog socket; empty for none.  ranges: whose uids count as one user."""
        self._files, self._clock, self._share_of = files, clock, ranges.share_of
        self._sinks = {trail: [_sink(file.append)] for trail, file in files.items()}
        for trail in files if syslog_path else ():
            self._sinks[trail].append(_sink(partial(send_lines, syslog_path, _SEVERITIES[trail])))
        self._rates = {trail: Rates(rate, rate.times(_USERS_IN_TOTAL)) for trail, rate in _RATES.items()}

    @property
    def lost(self) -> int:
        """The number of lines that could not be written since the start."""
        return sum(sink.lost for sinks in self._sinks.values() for sink in sinks)

    def record(self, peer: Peer, method: str, what: Mapping[str, Any], outcome: str, *, is_refused: bool = False) -> None:
        """Record a request.  outcome: DONE, or the text of the refusal."""
        outcome = outcome if len(outcome) <= _MOST_CHARACTERS else f"{outcome[:_MOST_CHARACTERS]}..."
        facts = {"uid": peer.uid, "pid": peer.pid, "method": method, "what": _cut(what), "outcome": outcome}
        log.info("audit", **facts)
        line = _line({"event": "refusal" if is_refused else "change", **facts})
        trail = Trail.REFUSED if is_refused else Trail.OPERATORS if peer.is_operator else Trail.USERS
        if peer.is_operator or self._rates[trail].allows(self._share_of(peer.uid), self._clock(), len(line)):
            self._put(trail, line)

    def configure(self, settings: LogOptions) -> None:
        """Apply the rotation settings, after each reload.  The file paths are fixed when the audit is opened."""
        for file in self._files.values():
            file.rotation = rotation(settings)
        self.tell_suppressed()

    def tell_suppressed(self) -> None:
        """Write for each user how many lines the rate limit suppressed."""
        for trail, rates in self._rates.items():
            for uid, lines in rates.take_suppressed().items():
                self._put(trail, _line({"event": "lines_suppressed", "uid": uid, "lines": lines}))

    def close(self) -> None:
        """Write the queued lines, under a deadline."""
        self.tell_suppressed()
        for sinks in self._sinks.values():
            for sink in sinks:
                sink.close()

    def _put(self, trail: Trail, line: bytes) -> None:
        for sink in self._sinks[trail]:
            sink.put(line)


def open_audit(log_directory: str, settings: LogOptions, ranges: UidRanges = NO_RANGES) -> Audit:
    """Open the audit.  Never fails: lines that cannot be written are counted."""
    files = {trail: LogFile(os.path.join(log_directory, trail.value), rotation(settings)) for trail in Trail}
    return Audit(files, settings.audit_socket, ranges)


def _sink(write: Callable[[bytes], None]) -> Sink:
    return Sink(write, lambda lines: _line({"event": "lines_lost", "lines": lines}))


def _line(facts: Mapping[str, Any]) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return (json.dumps({"time": now, **facts}, default=repr, separators=(",", ":")) + "\n").encode()


def _cut(what: Mapping[str, Any]) -> Mapping[str, Any] | str:
    text = json.dumps(what, default=repr)
    return what if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
