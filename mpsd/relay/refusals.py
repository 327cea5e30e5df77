"""Refuse clients: with an error, by killing them, or by letting them wait.

mpsd never closes the connection before the client does: CUDA would then run without MPS and without limits (docs/relay.md).
"""

import math

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.handshake_gate import Entrant, HandshakeGate
from mpsd.domains.refuser import Refuser
from mpsd.errors import Refused
from mpsd.host import processes
from mpsd.host.ownership import has_uid_of, on_account_of
from mpsd.host.peers import PeerEnded
from mpsd.model.lease import Refusal
from mpsd.model.process import ProcessId
from mpsd.relay.client_connection import ClientConnection, has_ended_when_it_sends, until_ended
from mpsd.relay.forwarding import LinkSide
from mpsd.relay.vendor_connection import connect

log = structlog.get_logger()
_HANG_UP_SECONDS = 1.0
_ANSWER_SECONDS = 3.0  # an answer takes milliseconds
_TURN_SECONDS = 5.0  # all that a client may take, whatever it sends
_AGAIN_SECONDS = 1.0


class Refusals(Struct):
    """Guards that a refused client never reaches a domain, and that users take turns at the daemon that refuses them.

    As every vendor daemon, that one waits for its peer without limit.
    """

    refuser: Refuser
    turn_seconds: float
    under_way: int = 0  # clients that wait for their error now
    _gate: HandshakeGate = field(default_factory=HandshakeGate)

    async def turn_away(self, caller: ClientConnection, refusal: Refused) -> None:
        """Refuse the client as configured."""
        way, why = Refusal(refusal.way), str(refusal)
        if way is Refusal.ERROR:
            await self.tell(caller, why)
        elif way is Refusal.END and caller.process and _end_process(caller.process, caller.credentials.uid):
            log.warning("client.ended", pid=caller.credentials.pid, uid=caller.credentials.uid, why=why)
            await until_ended(caller.connection)
        else:
            await self.hold(caller, None, why)

    async def tell(self, caller: ClientConnection, why: str) -> None:
        """Send the client error 805 through a vendor daemon that refuses all clients; hold the client if that fails for good.

        A client that is silent is told when it sends something: among many others it may get no processor for a while.
        """
        while not await self.try_to_tell(caller, why):
            if caller.link.transcript is None or not self.refuser.is_alive():
                await self.hold(caller, None, f"{why}, and it could not be informed")
                return
            if await has_ended_when_it_sends(caller.connection, _AGAIN_SECONDS if caller.link.awaits_domain else math.inf):
                return

    async def try_to_tell(self, caller: ClientConnection, why: str) -> bool:
        """Send the error; return False if the client does not respond, or no refusing daemon can be started."""
        self.under_way += 1
        try:
            is_told = await self._tell(caller)
        finally:
            self.under_way -= 1
        if is_told:
            log.info("client.refused", pid=caller.credentials.pid, uid=caller.credentials.uid, why=why)
        return is_told

    async def _tell(self, caller: ClientConnection) -> bool:
        directory = await self.refuser.open()
        if directory is None:
            return False
        async with self._gate.turn(Entrant("refused", caller.link.share, is_client=True)):
            with trio.move_on_after(_TURN_SECONDS):
                backend = await connect(f"{directory}/{caller.door}", self.refuser)
                if backend is None:
                    return False
                with backend:
                    return await caller.link.run(backend, self.turn_seconds, _not_for_long) is not LinkSide.SLOW_CLIENT
        return False

    async def is_known_later(self, caller: ClientConnection) -> bool:
        """Ask again who a client is that mpsd could not read; hold it, and return False, if its process has ended.

        With some kernels other processes of its user prevent the read (decision 029).  A client that hangs up soon has died in
        the queue, and is not logged.
        """
        who, is_told = caller.credentials, False
        while True:
            with trio.move_on_after(_HANG_UP_SECONDS):
                await until_ended(caller.connection)
                return False
            try:
                caller.identify()
                return True
            except PeerEnded as exc:
                await self.hold(caller, None, str(exc))
                return False
            except OSError:
                if not is_told:
                    log.info("client.waiting", process=who.pid, uid=who.uid, reason=caller.why_not)
                is_told = True

    async def hold(self, caller: ClientConnection, domain: Domain | None, why: str) -> None:
        """Keep the connection open until the client closes it."""
        log.error("relay.held", pid=caller.credentials.pid, uid=caller.credentials.uid,
                  domain=domain and domain.name, why=why, effect="the client waits; end it and start it again")
        caller.link.no_way_back()
        await until_ended(caller.connection)


async def _not_for_long() -> bool:
    """Give the refusing daemon time: it answers in milliseconds, unless it waits for the client."""
    await trio.sleep(_ANSWER_SECONDS)
    return False


def _end_process(process: ProcessId, uid: int) -> bool:
    """Kill the process; False if it has ended, mpsd may not, or it is not known to be this user's any more.

    It has no GPU context yet, so no other client suffers.  Its status is not read: thousands can be refused at one moment.
    """
    try:
        return has_uid_of(on_account_of(uid), process.pid) and processes.kill(process)
    except OSError:
        return False
