"""Run a function in a thread, also while the machine has none left for mpsd.

How many threads a process may have depends on TasksMax=, the pids of its cgroup and its memory.  A user's descriptors that are
slow to close take some (host/descriptors.py).  trio's own function raises RuntimeError then, which would end mpsd.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
import trio

log = structlog.get_logger()
_AGAIN_SECONDS = 0.1
T = TypeVar("T")


async def run_in_thread(
    function: Callable[..., T], *args: object, abandon_on_cancel: bool = False, limiter: trio.CapacityLimiter | None = None
) -> T:
    """Return what the function returns, as trio.to_thread.run_sync does; first wait until a thread can be started."""
    has_begun = is_told = False

    def run() -> T:
        nonlocal has_begun
        has_begun = True
        return function(*args)

    while True:
        try:
            return await trio.to_thread.run_sync(run, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        except RuntimeError as exc:
            if has_begun:  # it is the function's own
                raise
            if not is_told:
                log.error("threads.none", why=str(exc), effect="what needs a thread waits for one")
            is_told = True
        await trio.sleep(_AGAIN_SECONDS)


class UserThreads:
    """Guards that one user's work takes few threads at a time, so that the work of other users need not wait for it.

    in_thread: runs a function in a thread.
    """

    def __init__(self, most_of_user: int, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._most, self._in_thread = most_of_user, in_thread
        self._own: dict[int, trio.CapacityLimiter] = {}  # by share (UidRanges.share_of); of users with work

    async def run(self, share: int, function: Callable[..., T], *args: object) -> T:
        """Return what the function returns, called in a thread."""
        own = self._own.setdefault(share, trio.CapacityLimiter(self._most))
        try:
            async with own:
                found: T = await self._in_thread(function, *args)
                return found
        finally:
            if not own.borrowed_tokens and not own.statistics().tasks_waiting:
                self._own.pop(share, None)
