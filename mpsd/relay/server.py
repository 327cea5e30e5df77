"""Accept connections, keep their number within bounds, pass them to the keeper, and take them back.

conversation.py handles one connection.  While it is open the keeper holds it too, so that the death of mpsd does not close it.
"""

import os
import socket
from collections import Counter
from collections.abc import Awaitable, Iterable
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.errors import MpsdError, WrongSpeaker
from mpsd.fairness.places import Places
from mpsd.fairness.turns import Turns
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.arrivals import ACCEPTED, BEGUN, Arrival, accepted, hang_up
from mpsd.host.descriptors import Closings
from mpsd.host.peers import PeerEnded, peer_credentials, peer_process
from mpsd.host.polling import is_readable
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.client_connection import ClientConnection, client_id
from mpsd.relay.conversation import Conversations
from mpsd.relay.forwarding import Forwarding, has_hung_up
from mpsd.relay.hang_ups import HangUps
from mpsd.relay.progress import Track

log = structlog.get_logger()
_ROOM_SECONDS = 0.1
_FIRST_SHARE = 8  # one place in so many is kept for users who have few: users must not lock each other out
_FEW = 4  # a process begins with two connections, one after the other
_TOLD_SHARE = 8  # of these, one in so many is for clients that are getting their refusal for lack of a place
_WITHOUT = "had it been a CUDA process, it would now run without MPS"
_SETTLE_SECONDS = 0.005


class HeldConnection(Struct, frozen=True):
    """A connection that the keeper holds too, and that waits for its conversation."""

    number: int
    door: str
    arrival: Arrival
    track: Track

    @property
    def client_id(self) -> str:
        return client_id(self.number, self.door)


class Relay(Struct):
    """Guards the number of connections, of all and of each user, and that the keeper holds every open connection too."""

    conversations: Conversations
    ranges: UidRanges = NO_RANGES
    callers: dict[int, ClientConnection] = field(default_factory=dict)
    hang_ups: HangUps = field(default_factory=HangUps)
    waiting: Turns[HeldConnection] = field(default_factory=Turns)
    _taken: Counter[int] = field(default_factory=Counter)  # places, by the uid of their share
    _closings: Closings = field(default_factory=Closings)
    _turned_away: int = 0  # clients of users with too many connections that are being refused now
    _next_number: int = 1
    _listeners: list[socket.socket] = field(default_factory=list)

    async def serve(self, listener: socket.socket, door: str, nursery: trio.Nursery) -> None:
        """Accept until cancelled; start conversations in `nursery` in turns: one of each user."""
        self._listeners.append(listener)
        while True:
            if self.waiting:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(listener)
                await self._make_room()
            await self.conversations.keeper.until_it_keeps_up()
            try:
                self._accept_some(listener, door)
            except OSError as exc:
                log.error("relay.accept_failed", door=door, why=exc.strerror)
                await trio.sleep(_ROOM_SECONDS)
            for held in self.waiting.take(BEGUN):
                self._begin(held, nursery)

    def begin_placing(self) -> None:
        """Place clients from now on: every domain that one may be in is known."""
        self.conversations.assignment.may_place.set()

    def wish(self, process: ProcessId, uid: int | None, domain: str) -> None:
        self.conversations.assignment.wish(process, uid, domain)

    def move_state(self) -> None:
        """Continue in a state directory that was made again.  Raise OSError."""
        self.conversations.progress.move()

    def connections(self) -> list[tuple[str, socket.socket, int]]:
        """Return all connections that the keeper has to hold: name, socket and note."""
        callers = [(each.client_id, each.connection, each.link.track.slot) for each in self.callers.values()]
        return callers + [(each.client_id, each.arrival.sock, each.track.slot) for each in self.waiting]

    def _accept_some(self, listener: socket.socket, door: str) -> None:
        """Accept as many as one turn of the event loop has time for, and as places are free.  Raise OSError."""
        places = self.conversations.settings.max_connections - len(self.callers) - len(self.waiting)
        for _ in accepted(partial(self._accept, listener, door), min(ACCEPTED, places)):
            pass

    def _accept(self, listener: socket.socket, door: str) -> Arrival | None:
        """Accept the next connection; the keeper holds it from now on, and it waits for its conversation.  Raise OSError."""
        number, track = self._next_number, self.conversations.progress.begin()
        is_held = False
        try:
            arrival = self.conversations.keeper.accept(listener, client_id(number, door), track.slot)
            is_held = arrival is not None and not arrival.is_gone
        finally:
            if not is_held:
                self.conversations.progress.end(track)
        if arrival is not None and is_held:
            self._next_number = number + 1
            self.waiting.put(self.ranges.share_of(arrival.credentials.uid), HeldConnection(number, door, arrival, track))
        return arrival

    def _begin(self, held: HeldConnection, nursery: trio.Nursery) -> None:
        """Start the conversation, unless the client has hung up."""
        if has_hung_up(held.arrival.sock):
            hang_up(held.arrival.sock)
            self.conversations.keeper.drop(held.client_id)
            self.conversations.progress.end(held.track)
            return
        uid = held.arrival.credentials.uid
        own = self._taken[self.ranges.share_of(uid)]
        hindrance = self._places.hindrance(own, len(self.callers), uid in (0, os.geteuid()))
        caller = self._know(held.arrival.sock, held.door, held.number, held.track)
        self.hang_ups.watch(caller.connection, partial(_leave, caller))
        nursery.start_soon(self._converse, caller, self._conversation(caller, bool(hindrance)))

    def _conversation(self, caller: ClientConnection, is_hindered: bool) -> Awaitable[None]:
        if is_hindered:
            return self._turn_away(caller)
        return self.conversations.refusals.hold_unknown(caller) if caller.why_not else self.conversations.run(caller)

    @property
    def _places(self) -> Places:
        most = self.conversations.settings.max_connections
        return Places(most, most, 0, most // _FIRST_SHARE, _FEW)

    async def _turn_away(self, caller: ClientConnection) -> None:
        """Give the client an error.  If that takes too long, the relay closes its connection: other users need the place."""
        pid, uid = caller.credentials.pid, caller.credentials.uid
        why = f"user {uid} has {self._taken[self.ranges.share_of(uid)]} connections; the rest is kept for users with fewer"
        if self._turned_away < self._places.first // _TOLD_SHARE:
            self._turned_away += 1
            try:
                if await self.conversations.refusals.try_to_tell(caller, why):
                    return
            finally:
                self._turned_away -= 1
        log.warning("relay.evicted", pid=pid, uid=uid, why=why, effect=_WITHOUT)

    def resume(self, held: Iterable[tuple[str, socket.socket, int]], nursery: trio.Nursery) -> None:
        """Continue the connections that an earlier mpsd left with the keeper: `client.N.DOOR`, with its slot of `progress` as
        the note, and `domain.N.NAME`."""
        ends = {tuple(name.split(".", 2)): (end, note) for name, end, note in held if not name.startswith("listen.")}
        backends = {number: (name, end) for (kind, number, name), (end, _) in ends.items() if kind == "domain"}
        clients = {(number, door): found for (kind, number, door), found in ends.items() if kind == "client"}
        tracks = self.conversations.progress.resume(slot for _, slot in clients.values())
        for (number, door), (connection, slot) in clients.items():
            caller = self._know(connection, door, int(number), tracks.get(slot) or self.conversations.progress.begin())
            name, backend = backends.pop(number, ("", None))
            log.info("relay.resumed", pid=caller.credentials.pid, domain=name or None)
            nursery.start_soon(self._converse, caller, self._go_on(caller, name, backend))

    async def _go_on(self, caller: ClientConnection, name: str, backend: socket.socket | None) -> None:
        domain = self.conversations.pool.domains.get(name)
        track = caller.link.track
        if domain is not None and backend is not None and not track.is_torn:
            return await self.conversations.resume(caller, domain, backend)
        if backend is not None:
            backend.close()
            self.conversations.keeper.drop(caller.domain_id(name))  # or the vendor daemon would wait for it for ever
        if track.has_begun:
            lost = "it passed on a message, which may be lost" if track.is_torn else "no domain had this handshake any more"
            return await self.conversations.refusals.hold(caller, domain, f"mpsd died while {lost}")
        return await self.conversations.run(caller)

    async def settled(self) -> None:
        """While quitting, once clients cannot find the sockets: wait until no client waits there or is being refused."""
        refusals = self.conversations.refusals
        while True:
            if not refusals.refuser.is_alive():
                return
            if not (self.waiting or refusals.under_way or any(map(is_readable, self._listeners))):
                return
            await trio.sleep(_SETTLE_SECONDS)

    def _know(self, connection: socket.socket, door: str, number: int, track: Track) -> ClientConnection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        credentials = peer_credentials(connection)
        process, why_not = _identify(connection, credentials)
        link = Forwarding(
            connection,
            self.conversations.settings.may_impersonate,
            track=track,
            speaker=credentials.pid,
            closings=self._closings,
            share=self.ranges.share_of(credentials.uid),
        )
        caller = ClientConnection(number, door, connection, credentials, process, trio.current_time(), link, why_not=why_not)
        self._next_number = max(self._next_number, number + 1)
        self.callers[number] = caller
        self._taken[self.ranges.share_of(credentials.uid)] += 1
        self.conversations.open[process] += 1
        return caller

    async def _converse(self, caller: ClientConnection, conversation: Awaitable[None]) -> None:
        """Run the conversation.  A failure in it ends this conversation and nothing else."""
        who = {"pid": caller.credentials.pid, "uid": caller.credentials.uid}
        try:
            with caller.scope:
                await conversation
            if caller.scope.cancelled_caught and not has_hung_up(caller.connection):
                log.warning("relay.evicted", **who, why="too many connections, and it never sent a message", effect=_WITHOUT)
        except WrongSpeaker as exc:
            await self.conversations.refusals.hold(caller, None, str(exc))
        except MpsdError as exc:
            log.warning("relay.dropped", **who, why=str(exc))
        except OSError as exc:
            log.info("relay.lost", **who, why=exc.strerror)
        except trio.Cancelled:
            raise  # mpsd leaves: the keeper continues to hold the connection
        except Exception:
            log.exception("relay.bug", **who)
            await self.conversations.refusals.hold(caller, None, "mpsd failed; closed, it would run without MPS")
        self.hang_ups.forget(caller.connection)
        caller.link.close()
        self.conversations.keeper.drop(caller.client_id)
        self.conversations.progress.end(caller.link.track)
        del self.callers[caller.number]
        self._forget(caller)

    def _forget(self, caller: ClientConnection) -> None:
        """Give the places back.  With the last connection of a process its offences are forgotten."""
        shared, share = self.conversations, self.ranges.share_of(caller.credentials.uid)
        self._taken[share] -= 1
        if not self._taken[share]:
            del self._taken[share]
        if caller.process is not None:
            shared.assignment.separation.hung_up(caller.process)
        shared.open[caller.process] -= 1
        if not shared.open[caller.process]:
            del shared.open[caller.process]
            shared.offences.forget(caller.process)

    async def _make_room(self) -> None:
        """Return at once below the bound.  At it, wait until a silent client is evicted or another has ended.

        Further clients queue in the kernel, they are not refused.
        """
        while len(self.callers) + len(self.waiting) >= self.conversations.settings.max_connections:
            self._evict_silent()
            await trio.sleep(_ROOM_SECONDS)

    def _evict_silent(self) -> None:
        """Evict clients that sent nothing for long after their domain did: those of the user with most of them."""
        latest = trio.current_time() - self.conversations.settings.silent_seconds
        links = ((caller, caller.link) for caller in self.callers.values())
        silent = [caller for caller, link in links if link.has_run and not link.has_spoken and caller.since < latest]
        if silent:
            share_of = self.ranges.share_of
            [(greediest, _)] = Counter(share_of(caller.credentials.uid) for caller in silent).most_common(1)
            for caller in [each for each in silent if share_of(each.credentials.uid) == greediest][:ACCEPTED]:
                caller.scope.cancel()


def _leave(caller: ClientConnection) -> None:
    """Cancel the wait of a caller that hung up.  A link notices by itself, after it has read all messages sent before."""
    if not caller.link.has_run:
        caller.scope.cancel()


def _identify(connection: socket.socket, credentials: Credentials) -> tuple[ProcessId | None, str]:
    """Return the process that connected, or why it is not known: a wrong one would get these limits, or be ended."""
    try:
        return peer_process(connection, credentials), ""
    except PeerEnded as exc:
        return None, str(exc)
    except OSError as exc:
        return None, f"mpsd cannot see who it is: {exc.strerror}"
