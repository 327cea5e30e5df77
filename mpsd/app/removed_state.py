"""Make the state directory again after another process removed it, so that a restart of mpsd loses little.

mpsd continues with the removed files, which it has open.  In the new directory it keeps what the next mpsd needs: copies of the
databases, who the clients of the running vendor daemons are, a keeper that can be reached, and the progress of connections.
Prose: docs/operating.md, "At three in the morning".
"""

import os
import sqlite3
from collections.abc import Callable

import structlog
import trio
from msgspec import Struct

from mpsd.app.instance_lock import LOCK, InstanceLock
from mpsd.domains.pool import Pool
from mpsd.errors import MpsdError
from mpsd.host.file_identity import FileId, identity_of
from mpsd.storage.checkpointing import Checkpointing
from mpsd.threads import run_in_thread

log = structlog.get_logger()
LOOK_SECONDS = 0.5
_COPY_SECONDS = 1.0  # between two looks whether a database has changed


class RemovedState(Struct):
    """Guards that a new directory is made only after the old one was removed or replaced, and is kept up to date from then on.

    move: lets the keeper and the progress of connections continue in the new directory.
    """

    claim: InstanceLock
    pool: Pool
    write_back: Checkpointing
    move: Callable[[], None]
    _known: FileId | None = None
    _is_copied: bool = False  # the directory is not the one that mpsd was started with
    _copied_at: float = 0.0  # trio time
    _trouble: str = ""

    async def run(self) -> None:
        """Run as long as mpsd."""
        self._known = await run_in_thread(self._identity, abandon_on_cancel=True)
        while True:
            await trio.sleep(LOOK_SECONDS)
            try:
                await self._look()
                self._trouble = ""
            except (MpsdError, OSError, sqlite3.Error) as exc:
                if str(exc) != self._trouble:
                    log.error("state_directory.not_made", why=str(exc), effect="a restart of mpsd would lose what it stores")
                self._trouble = str(exc)

    async def _look(self) -> None:
        found = await run_in_thread(self._identity, abandon_on_cancel=True)
        if self._known != found or found is None:
            await self._make()
        elif self._is_copied and trio.current_time() > self._copied_at + _COPY_SECONDS:
            await self._copy()

    async def _make(self) -> None:
        await run_in_thread(self.claim.remake_state)
        await self.pool.outlived.record(self.pool.settings.home, self.pool.domains.values())
        self.move()
        self.write_back.forget_copies()
        await self._copy()
        self._known, self._is_copied = await run_in_thread(self._identity), True
        log.error("state_directory.made_again", path=str(self.claim.state_directory),
                  effect="running clients continue; their domains take no new ones")  # fmt: skip

    async def _copy(self) -> None:
        await run_in_thread(self.write_back.copy)
        self._copied_at = trio.current_time()

    def _identity(self) -> FileId | None:
        """Return the identity of the lock, which nothing but a removal takes away."""
        try:
            return identity_of(os.stat(self.claim.state_directory / LOCK))
        except (FileNotFoundError, NotADirectoryError):
            return None
