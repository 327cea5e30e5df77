"""Run a vendor daemon without servers: it gives clients an error (805); a closed connection would let them run without MPS.

It runs as a user of its own and so may not start servers for others (measured; docs/decisions/004).  mpsd starts it when it
refuses the first client.
"""

import os
import shutil
from functools import partial
from pathlib import Path

import structlog
import trio

from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.errors import MpsdError
from mpsd.threads import run_in_thread

log = structlog.get_logger()
REFUSER_UID = 0x7FFFFFFE  # the uid of no user, so that no client can be of the same user


class Refuser:
    """Guards that at most one such daemon runs, and that it ends with mpsd."""

    def __init__(self, program: VendorProgram, home: Path, visible_devices: str | None) -> None:
        self._home = home
        self._visible_devices = visible_devices
        self._control = VendorControl(program, home, REFUSER_UID)
        self._starting = trio.Lock()

    def is_alive(self) -> bool:
        return self._control.is_alive()

    @property
    def pid(self) -> int:
        """The pid of its vendor daemon; 0 before the first start."""
        return self._control.process.pid if self._control.process else 0

    async def open(self) -> str | None:
        """Return the pipe directory of a running daemon; None if it cannot start: then refused clients wait, which is safe."""
        if os.geteuid() != 0:
            return None
        async with self._starting:
            if not self._is_found():
                try:
                    await self._control.start(self._visible_devices)
                except MpsdError as exc:
                    log.warning("refuser.absent", why=str(exc), effect="clients that are refused wait")
                    return None
        return str(self._control.pipe_directory)

    def _is_found(self) -> bool:
        """Return whether one runs, this mpsd's or one that an earlier mpsd left: a second one would not start beside it."""
        return self._control.is_alive() or (self._home.exists() and self._control.adopt() is not None)

    async def close(self, patience_seconds: float) -> None:
        if self._is_found() and not await self._control.quit(patience_seconds):
            await self._control.kill()
        await self._control.sweep()
        await run_in_thread(partial(shutil.rmtree, self._home, ignore_errors=True))
