"""Clients that may not run: told so, ended, or kept waiting.

However it is done, the client's connection is not closed before the client ends it: closed, CUDA would run without MPS and
without limits (FACTS.md).
"""

from dataclasses import dataclass

import structlog
import trio

from mpsd import processes
from mpsd.domains.domain import Domain
from mpsd.domains.refuser import Refuser
from mpsd.errors import Refused
from mpsd.lease import Refusal
from mpsd.model import ProcessId
from mpsd.relay.backend import connect
from mpsd.relay.caller import Caller, until_ended
from mpsd.relay.link import End

log = structlog.get_logger()
_HANG_UP_SECONDS = 1.0
_ANSWER_SECONDS = 3.0  # milliseconds are usual; cut short, the client would be held


@dataclass(slots=True)
class Refusals:
    """Guards that a refused client never gets further."""

    refuser: Refuser
    turn_seconds: float
    under_way: int = 0  # callers who are being told

    async def turn_away(self, caller: Caller, refusal: Refused) -> None:
        """As configured."""
        way, why = Refusal(refusal.way), str(refusal)
        if way is Refusal.ERROR:
            await self.tell(caller, why)
        elif way is Refusal.END and caller.process and _end_process(caller.process):
            log.warning("client.ended", pid=caller.credentials.pid, uid=caller.credentials.uid, why=why)
            await until_ended(caller.connection)
        else:
            await self.hold(caller, None, why)

    async def tell(self, caller: Caller, why: str) -> None:
        """A vendor daemon that can serve nobody gives the client its error (805)."""
        if not await self.try_to_tell(caller, why):
            await self.hold(caller, None, f"{why}, and it could not be told so")

    async def try_to_tell(self, caller: Caller, why: str) -> bool:
        """As `tell`; False where the client does not listen, or no such daemon can be had."""
        self.under_way += 1
        try:
            is_told = await self._tell(caller)
        finally:
            self.under_way -= 1
        if is_told:
            log.info("client.refused", pid=caller.credentials.pid, uid=caller.credentials.uid, why=why)
        return is_told

    async def _tell(self, caller: Caller) -> bool:
        directory = await self.refuser.open()
        backend = await connect(f"{directory}/{caller.door}", self.refuser) if directory else None
        if backend is None:
            return False
        with backend:
            return await caller.link.run(backend, self.turn_seconds, _not_for_long) is not End.SLOW_CLIENT

    async def hold_unknown(self, caller: Caller) -> None:
        """One of which it is not known who it is; a client that died in the queue has hung up as well, and is not told of."""
        with trio.move_on_after(_HANG_UP_SECONDS):
            await until_ended(caller.connection)
            return
        await self.hold(caller, None, caller.why_not)

    async def hold(self, caller: Caller, domain: Domain | None, why: str) -> None:
        """Closed, it would run without MPS: it stays open until the client ends it."""
        log.error("relay.held", pid=caller.credentials.pid, uid=caller.credentials.uid,
                  domain=domain and domain.name, why=why, effect="the client waits; end it and start it again")
        caller.link.no_way_back()
        await until_ended(caller.connection)


async def _not_for_long() -> bool:
    """The daemon that refuses answers in milliseconds, or waits for its peer."""
    await trio.sleep(_ANSWER_SECONDS)
    return False


def _end_process(process: ProcessId) -> bool:
    """SIGKILL.  It has no context yet, so nobody's work can suffer."""
    try:
        return processes.kill(process)
    except OSError:
        return False
