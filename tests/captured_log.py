"""Record the events that the code under test logs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpsd.logger import log


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Collect events of every level as dicts, `event` and `log_level` among the facts; none is written meanwhile."""
    found: list[dict[str, Any]] = []
    before = log.write, log.least
    log.write, log.least = lambda level, event, facts: found.append({**facts, "event": event, "log_level": level}), "debug"
    try:
        yield found
    finally:
        log.write, log.least = before
