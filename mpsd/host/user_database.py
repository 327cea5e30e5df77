"""Ask the user database (passwd and group, through NSS) in threads, under deadlines: on a network it may never answer.

Until it answers, mpsd grants no right that depends on it: the group of operators has no members, a client whose quota depends
on it waits, a directory's group counts as shared. Prose: docs/operating.md, "The user database".
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog
import trio

from mpsd.host.user_lookups import ANSWER_SECONDS, gid_of
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_REFRESH_SECONDS = 60.0  # a group that is made while mpsd runs counts after so long, or after a reload
_LOOK_SECONDS = 0.02  # one task of a share at a time looks
_THREADS = 8  # each may wait for the database for as long as that likes
_T = TypeVar("_T")


class UserDatabase:
    """Guards that no task waits longer than the deadline, and that only a few threads wait at once, however long they do."""

    def __init__(self, threads: int = _THREADS, seconds: float = ANSWER_SECONDS) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._seconds = seconds
        self._asking: set[int] = set()  # shares with a thread, also after its asker has given up

    async def ask(self, look_up: Callable[[], _T], share: int = 0) -> _T:
        """Return what the function returns.  Raises TooSlowError, and what the function raises.

        share: whose question it is.  Of each one thread runs at a time: a user with many uids must not take all.
        """

        started = False

        def asks() -> _T:
            nonlocal started
            started = True
            try:
                return look_up()
            finally:
                self._asking.discard(share)

        with trio.fail_after(self._seconds):
            while share in self._asking:  # noqa: ASYNC110  no task is woken when an abandoned thread ends
                await trio.sleep(_LOOK_SECONDS)
            self._asking.add(share)
            try:
                return await run_in_thread(asks, abandon_on_cancel=True, limiter=self._limiter)
            finally:
                if not started:
                    self._asking.discard(share)


class AdminGroup:
    """Guards that a connection never waits for the user database, and that an unknown group has no members.

    An answer counts until another one comes: a database that stops answering later takes no operator's rights away.
    """

    def __init__(self, name: str, seconds: float = ANSWER_SECONDS) -> None:
        """name: of the configuration; empty for none."""
        self._name = name
        self._gid: int | None = None
        self._users = UserDatabase(threads=1, seconds=seconds)

    @classmethod
    async def named(cls, name: str) -> "AdminGroup":
        """Return the group of this name once it is known, or the database does not answer."""
        group = cls(name)
        await group.look_up()
        return group

    def gid(self) -> int | None:
        """Return the group's id; None while it is not known."""
        return self._gid

    async def rename(self, name: str) -> None:
        """Take another group from now on, and return once it is known, or the database does not answer."""
        if name != self._name:
            self._name, self._gid = name, None
        await self.look_up()

    async def run(self) -> None:
        """Ask again from time to time, for as long as mpsd runs."""
        while True:
            await trio.sleep(_REFRESH_SECONDS)
            await self.look_up()

    async def look_up(self) -> None:
        name = self._name
        if not name:
            return
        try:
            found = await self._users.ask(partial(gid_of, name))
        except trio.TooSlowError:
            effect = "its members are not operators" if self._gid is None else f"gid {self._gid} still counts"
            log.warning("users.silent", group=name, why="the user database does not answer", effect=effect)
        else:
            if name == self._name:  # otherwise a reload has named another group since
                self._gid = found
