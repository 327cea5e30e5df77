"""Writes periodically how many lines the logs suppressed, of users who caused too many (journal.py, api/audit.py)."""

from collections.abc import Callable

import trio

SECONDS = 30.0  # they are written at a reload and at the end too


async def tell_suppressed(*tell: Callable[[], None]) -> None:
    """Run until cancelled.  Each `tell` passes lines to a thread, and never waits."""
    while True:
        await trio.sleep(SECONDS)
        for each in tell:
            each()
