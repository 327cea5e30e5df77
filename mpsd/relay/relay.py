"""The relay's door: accepting connections, keeping them within bounds, giving them to the keeper, taking them back.

What happens to one connection is in conversation.py.  While it is open the keeper holds it too, so that the death of mpsd
does not close it.
"""

import select
import socket
from collections import Counter
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field

import structlog
import trio

from mpsd import processes
from mpsd.errors import MpsdError
from mpsd.relay.caller import Caller, client_id
from mpsd.relay.conversation import Conversations
from mpsd.relay.link import Link
from mpsd.relay.peers import peer_credentials
from mpsd.relay.progress import Track

log = structlog.get_logger()
_ROOM_SECONDS = 0.1
_SETTLE_SECONDS = 0.005


@dataclass(slots=True)
class Relay:
    """Guards the number of connections, and that whatever is open is in the keeper's hands too."""

    conversations: Conversations
    callers: dict[int, Caller] = field(default_factory=dict)
    _next_number: int = 1
    _listeners: list[socket.socket] = field(default_factory=list)

    async def serve(self, listener: socket.socket, door: str, nursery: trio.Nursery) -> None:
        """Accept until cancelled; conversations run in `nursery`."""
        self._listeners.append(listener)
        while True:
            await trio.lowlevel.wait_readable(listener)
            await self._make_room()
            number, track = self._next_number, self.conversations.progress.begin()
            try:
                connection = self.conversations.keeper.accept(listener, client_id(number, door), track.slot)
            except OSError as exc:
                self.conversations.progress.end(track)
                if not isinstance(exc, BlockingIOError):
                    log.error("relay.accept_failed", door=door, why=exc.strerror)
                    await trio.sleep(_ROOM_SECONDS)
                continue
            caller = self._know(connection, door, number, track)
            nursery.start_soon(self._converse, caller, self.conversations.run(caller))

    def resume(self, held: Iterable[tuple[str, socket.socket, int]], nursery: trio.Nursery) -> None:
        """Go on with the connections an earlier mpsd left with the keeper: `client.N.DOOR`, whose note is its slot of
        `progress`, and `domain.N.NAME`."""
        ends = {tuple(name.split(".", 2)): (end, note) for name, end, note in held if not name.startswith("listen.")}
        backends = {number: (name, end) for (kind, number, name), (end, _) in ends.items() if kind == "domain"}
        clients = {(number, door): found for (kind, number, door), found in ends.items() if kind == "client"}
        tracks = self.conversations.progress.resume(slot for _, slot in clients.values())
        for (number, door), (connection, slot) in clients.items():
            caller = self._know(connection, door, int(number), tracks.get(slot) or self.conversations.progress.begin())
            name, backend = backends.pop(number, ("", None))
            log.info("relay.resumed", pid=caller.credentials.pid, domain=name or None)
            nursery.start_soon(self._converse, caller, self._go_on(caller, name, backend))

    async def _go_on(self, caller: Caller, name: str, backend: socket.socket | None) -> None:
        domain = self.conversations.pool.domains.get(name)
        track = caller.link.track
        if domain is not None and backend is not None and not track.is_torn:
            return await self.conversations.resume(caller, domain, backend)
        if backend is not None:
            backend.close()
            self.conversations.keeper.drop(caller.domain_id(name))  # or the vendor daemon would go on waiting for it
        if track.has_begun:
            lost = "it passed on a message, which may be lost" if track.is_torn else "no domain had this handshake any more"
            return await self.conversations.refusals.hold(caller, domain, f"mpsd died while {lost}")
        return await self.conversations.run(caller)

    async def settled(self) -> None:
        """While quitting, once no door can be found: returns when nobody waits at one or is being refused any more."""
        refusals = self.conversations.refusals
        while True:
            if not refusals.refuser.is_alive() or not (refusals.under_way or any(map(_has_arrivals, self._listeners))):
                return
            await trio.sleep(_SETTLE_SECONDS)

    def _know(self, connection: socket.socket, door: str, number: int, track: Track) -> Caller:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        credentials = peer_credentials(connection)
        process = processes.process_id(credentials.pid)
        link = Link(connection, self.conversations.settings.may_impersonate, track=track)
        caller = Caller(number, door, connection, credentials, process, trio.current_time(), link)
        self._next_number = max(self._next_number, number + 1)
        self.callers[number] = caller
        self.conversations.open[process] += 1
        return caller

    async def _converse(self, caller: Caller, conversation: Awaitable[None]) -> None:
        """Whatever goes wrong in here ends this conversation and nothing else."""
        who = {"pid": caller.credentials.pid, "uid": caller.credentials.uid}
        try:
            with caller.scope:
                await conversation
            if caller.scope.cancelled_caught:
                log.warning("relay.evicted", **who, why="too many connections, and it never said a word",
                            effect="had it been a CUDA process, it would now run without MPS")
        except MpsdError as exc:
            log.warning("relay.dropped", **who, why=str(exc))
        except OSError as exc:
            log.info("relay.lost", **who, why=exc.strerror)
        except trio.Cancelled:
            raise  # mpsd leaves: the keeper goes on holding the connection
        except Exception:
            log.exception("relay.bug", **who)
            await self.conversations.refusals.hold(caller, None, "mpsd failed; closed, it would run without MPS")
        caller.link.close()
        self.conversations.keeper.drop(caller.client_id)
        self.conversations.progress.end(caller.link.track)
        del self.callers[caller.number]
        self._forget(caller)

    def _forget(self, caller: Caller) -> None:
        """Offences are forgotten with the last connection of their process."""
        shared = self.conversations
        if caller.process is not None:
            shared.entrance.separation.hung_up(caller.process)
        shared.open[caller.process] -= 1
        if not shared.open[caller.process]:
            del shared.open[caller.process]
            shared.offences.pop(caller.process, None)

    async def _make_room(self) -> None:
        """Below the bound at once; at it, by evicting whoever has been silent longest among the user with most such
        connections; else wait: further clients queue in the kernel, they are not turned away."""
        settings = self.conversations.settings
        while len(self.callers) >= settings.max_connections:
            latest = trio.current_time() - settings.silent_seconds
            silent = [c for c in self.callers.values() if not c.link.has_spoken and c.since < latest]
            if silent:
                [(greediest, _)] = Counter(c.credentials.uid for c in silent).most_common(1)
                min((c for c in silent if c.credentials.uid == greediest), key=lambda c: c.since).scope.cancel()
            await trio.sleep(0 if silent else _ROOM_SECONDS)


def _has_arrivals(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))
