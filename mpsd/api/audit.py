"""The audit: every change that was asked for on the socket, by whom, and what became of it.

One line of JSON each in LOG_DIR/audit.log, and an event of mpsd's own log.  Neither can hold the daemon up: a full or hung
disk costs lines, which are counted (sink.py).  Prose: docs/operating.md, "Logs".
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from mpsd.api.authority import Peer
from mpsd.sink import LogFile, Sink

log = structlog.get_logger()
FILE_NAME = "audit.log"
_MODE = 0o640  # who does what is not everybody's business
_MOST_CHARACTERS = 4096  # of what was asked: a stranger must not fill the disk by being refused
DONE = "done"


class Audit:
    """Guards that each change has its line.  `file`: a reload may change its max_bytes."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._sink = Sink(file.append, lambda lines: _line({"event": "lines_lost", "lines": lines}))

    @property
    def lost(self) -> int:
        """Lines that could not be written since the start."""
        return self._sink.lost

    def record(self, peer: Peer, method: str, what: Mapping[str, Any], outcome: str) -> None:
        """outcome: DONE, or the words of the refusal."""
        facts = {"uid": peer.uid, "pid": peer.pid, "method": method, "what": _cut(what), "outcome": outcome}
        log.info("audit", **facts)
        self._sink.put(_line({"event": "change", **facts}))

    def close(self) -> None:
        """Write what waits, under a deadline."""
        self._sink.close()


def open_audit(log_directory: str, max_bytes: int) -> Audit:
    """Never fails: what cannot be written is counted.  At max_bytes the file becomes audit.log.1; 0: never."""
    return Audit(LogFile(os.path.join(log_directory, FILE_NAME), max_bytes, _MODE))


def _line(facts: Mapping[str, Any]) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return (json.dumps({"time": now, **facts}, default=repr, separators=(",", ":")) + "\n").encode()


def _cut(what: Mapping[str, Any]) -> Mapping[str, Any] | str:
    text = json.dumps(what, default=repr)
    return what if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
