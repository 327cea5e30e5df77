"""What a domain knows of the sentinel in its server (mpsd/sentinel/, docs/sentinel.md)."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class SentinelPort(Protocol):
    """One stopped client of mpsd's own for each GPU of the domain, which is no client for any count or list."""

    @property
    def pids(self) -> frozenset[int]:
        """The pids of the stopped clients, as the vendor daemon lists them."""

    async def take_over(self) -> None:
        """Take over what an earlier mpsd started here; return when `pids` is known, or after a limited time."""

    def aside(self, *, unless_contained: bool = False) -> AbstractAsyncContextManager[None]:
        """End it on entry, within a limited time, and start none inside.

        For all that a server can do only while none of its clients is stopped: to end a client, or itself.  unless_contained:
        raise VendorFailed instead if it has an exception to contain, also one that it has not reported yet.
        """


class NoSentinel:
    """Stands for the sentinel in a domain without one."""

    pids: frozenset[int] = frozenset()

    async def take_over(self) -> None: ...

    @asynccontextmanager
    async def aside(self, *, unless_contained: bool = False) -> AsyncIterator[None]:
        yield
