"""`log`: the one logger.  An event is a constant, facts are keys: ``log.info("client.admitted", pid=pid)``.

log/journal.py writes the events once it is open; before, and in programs that open none, they go to standard error.
"""

import sys
from collections.abc import Callable
from typing import Any

Facts = dict[str, Any]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def _print(level: str, event: str, facts: Facts) -> None:
    print(level, event, facts, file=sys.stderr)


class Logger:
    """Hands each event, with its level and facts, to `write`; drops those below the level `least`.

    Any thread may log.  The fact `exc_info` asks for the traceback of the exception that is being handled.
    """

    def __init__(self) -> None:
        self.write: Callable[[str, str, Facts], None] = _print
        self.least = "debug"

    def debug(self, event: str, **facts: Any) -> None:
        self._put("debug", event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._put("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._put("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._put("error", event, facts)

    def exception(self, event: str, **facts: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._put("error", event, facts | {"exc_info": True})

    def critical(self, event: str, **facts: Any) -> None:
        self._put("critical", event, facts)

    def _put(self, level: str, event: str, facts: Facts) -> None:
        if LEVELS[level] >= LEVELS[self.least]:
            self.write(level, event, facts)


log = Logger()
