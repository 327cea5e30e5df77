"""When the logs say how many lines they did not write, of users who caused too many (log.py, api/audit.py)."""

from collections.abc import Callable

import trio

SECONDS = 30.0  # at a reload and at the end too


async def tell_suppressed(*tell: Callable[[], None]) -> None:
    """Runs until cancelled.  Each `tell` hands lines to a thread, and never waits."""
    while True:
        await trio.sleep(SECONDS)
        for each in tell:
            each()
