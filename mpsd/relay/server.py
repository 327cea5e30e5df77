"""Accept connections, keep their number within bounds, pass them to the keeper, and take them back.

conversation.py handles one connection.  While it is open the keeper holds it too, so that the death of mpsd does not close it.
"""

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.placement_waits import Reason
from mpsd.errors import FatalMessage, MpsdError, WrongSpeaker
from mpsd.fairness.places import Places
from mpsd.fairness.turns import Turns
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.arrivals import ACCEPT_PAUSE_SECONDS, ACCEPTED, BEGUN, Arrival, accepted, hang_up, in_time
from mpsd.host.descriptors import Closings
from mpsd.host.peers import PeerEnded, peer_credentials, peer_process
from mpsd.host.polling import is_readable
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.backlog import Backlog, Note
from mpsd.relay.client_connection import ClientConnection, client_id
from mpsd.relay.conversation import Conversations
from mpsd.relay.forwarding import Forwarding, has_hung_up
from mpsd.relay.hang_ups import HangUps
from mpsd.relay.progress import TO_CLIENT, Track

log = structlog.get_logger()
_ROOM_SECONDS = 0.1
_FIRST_SHARE = 8  # one place in so many is kept for users who have few: users must not lock each other out
_CLIENTS_SHARE = 8  # one place in so many is kept for clients that have a domain: each of their contexts needs a connection
_FEW = 4  # a process begins with two connections, one after the other
_LOOKED_AT = 64  # connections of the backlog in one step, each _ROOM_SECONDS; of a long one sooner
_BACKLOG_SECONDS = 1.0  # for a look at a whole backlog: 6,400 connections of one user can be before that of another
_CROWDED = "relay.max_connections: its user has as many as it may have now, the rest is kept for users with fewer"
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
    backlog: Backlog = field(default_factory=Backlog)
    _taken: Counter[int] = field(default_factory=Counter)  # places, by the uid of their share
    _taken_by_clients: Counter[int] = field(default_factory=Counter)  # of those kept for clients that have a domain; likewise
    _closings: Closings = field(default_factory=Closings)
    _crowded: Reason = field(default_factory=partial(Reason, _CROWDED))
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
                await trio.sleep(ACCEPT_PAUSE_SECONDS)
            for held in in_time(self.waiting.take(BEGUN)):
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
        waiting = [(each.client_id, each.arrival.sock, each.track.slot) for each in self.waiting]
        return callers + waiting + self.backlog.ends()

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
        """Start the conversation, unless the client has hung up, or its user's places are taken."""
        sock, who = held.arrival.sock, held.arrival.credentials
        if has_hung_up(sock):
            hang_up(sock)
        elif (places := self._places_for(who, partial(_process_at, sock, who), is_first=False)) is not None:
            self._start(sock, held.door, held.number, held.track, nursery, places)
            return
        elif self._wait(sock, Note(held.number, held.door)):
            sock.close()
        else:
            _log_evicted(who, "too many connections, and too many of this user's wait already")
            hang_up(sock)
        self.conversations.keeper.drop(held.client_id)
        self.conversations.progress.end(held.track)

    def _places_for(
        self, who: Credentials, find_process: Callable[[], ProcessId | None], *, is_first: bool
    ) -> Counter[int] | None:
        """Return the places of which the connection gets one; None if it has to wait.

        is_first: no earlier connection of this user waits.
        A client that has a domain gets a few of the places that newcomers do not get: they may wait for its end.  One user gets
        four fifths of these at most, and they do not count for newcomers.  Root may be a container's: it has such a share too.
        """
        most = self.conversations.settings.max_connections
        if len(self.callers) + len(self.waiting) >= most:
            return None
        share, pool = self.ranges.share_of(who.uid), self.conversations.pool
        if is_first or not self.backlog.of(share):
            hindrance = self._newcomers.hindrance(self._taken[share], self._taken.total(), is_operator=False)
            if not hindrance or pool.is_stopping:
                return self._taken
        process = find_process()
        if pool.home_of(process) is None or self.conversations.open[process] >= _FEW:
            return None
        kept = self._taken_by_clients
        all_kept = most - self._newcomers.most
        hindrance = Places(all_kept, all_kept, 0, 0, 1).hindrance(kept[share], kept.total(), is_operator=False)
        return None if hindrance else kept

    def _start(self, sock: socket.socket, door: str, number: int, track: Track, nursery: trio.Nursery,
               places: Counter[int], greeting: Iterable[bytes] = (), process: ProcessId | None = None) -> None:  # fmt: skip
        caller = self._know(sock, door, number, track, places)
        caller.link.is_doubtful |= process is not None and caller.process not in (None, process)
        caller.link.transcript = list(greeting)
        self.hang_ups.watch(caller.connection, partial(_leave, caller))
        nursery.start_soon(self._converse, caller, self.conversations.run(caller))

    @property
    def _newcomers(self) -> Places:
        """The places of processes without a domain yet."""
        most = self.conversations.settings.max_connections
        most -= most // _CLIENTS_SHARE
        return Places(most, most, 0, most // _FIRST_SHARE, _FEW)

    # -- the backlog -----------------------------------------------------------------------------------------------------

    def _wait(self, sock: socket.socket, note: Note, *, was_in: bool = False) -> bool:
        """Put a copy of the connection into the backlog; False if the backlog is full."""
        who = peer_credentials(sock)
        process, _, _ = _identify(sock, who)
        listing = nullcontext() if note.greeting else self._listed(process, who.uid)
        return self.backlog.put(sock, note, self.ranges.share_of(who.uid), listing, process, was_in=was_in)

    @contextmanager
    def _listed(self, process: ProcessId | None, uid: int) -> Iterator[None]:
        """List the process in the queue while its connection waits for a place."""
        waits = self.conversations.pool.waits
        with waits.begin(process, uid):
            waits.explain(process, self._crowded)
            log.info("client.waiting", process=process and process.pid, uid=uid, reason=_CROWDED)
            yield

    async def _serve_backlog(self, nursery: trio.Nursery) -> None:
        """Begin connections that have a place, and remove those that have hung up, until cancelled."""
        aside_at = trio.current_time()
        while True:
            await self.backlog.until_some()
            if self._taken.total() >= self._newcomers.most and trio.current_time() >= aside_at:
                self._set_silent_aside()
                aside_at = trio.current_time() + _ROOM_SECONDS
            begun = 0
            for sock, note in in_time(self.backlog.first(_LOOKED_AT)):
                if has_hung_up(sock):
                    self.backlog.take(note)
                    hang_up(sock)
                elif (note.greeting and not is_readable(sock)) or (
                    places := self._places_for(peer_credentials(sock), partial(self.backlog.process_of, note), is_first=True)
                ) is None:
                    self.backlog.turn(sock, note)
                else:
                    self._begin_late(sock, note, nursery, places)
                    begun += 1
                if begun == BEGUN:
                    break
            await trio.sleep(0 if begun else min(_ROOM_SECONDS, _BACKLOG_SECONDS * _LOOKED_AT / max(1, len(self.backlog))))

    def _begin_late(self, sock: socket.socket, note: Note, nursery: trio.Nursery, places: Counter[int]) -> None:
        track = self.conversations.progress.begin()
        if note.greeting:
            with track.passing(TO_CLIENT):
                pass  # another mpsd must not begin anew with it
        self.conversations.keeper.hold(client_id(note.number, note.door), sock, track.slot)
        process = self.backlog.take(note)
        self._start(sock, note.door, note.number, track, nursery, places, note.greeting, process)

    def resume(self, held: Sequence[tuple[str, socket.socket, int]], nursery: trio.Nursery) -> None:
        """Continue the connections that an earlier mpsd left with the keeper: `client.N.DOOR`, with its slot of `progress` as
        the note, `domain.N.NAME`, and the backlog."""
        ends = {tuple(name.split(".", 2)): (end, note) for name, end, note in held if not name.startswith("listen.")}
        backends = {number: (name, end) for (kind, number, name), (end, _) in ends.items() if kind == "domain"}
        clients = {(number, door): found for (kind, number, door), found in ends.items() if kind == "client"}
        tracks = self.conversations.progress.resume(slot for _, slot in clients.values())
        known = {name for name, _, _ in held}
        for (number, door), (connection, slot) in clients.items():
            track = tracks.get(slot) or self.conversations.progress.begin()
            caller = self._know(connection, door, int(number), track, self._taken)
            name, backend = backends.pop(number, ("", None))
            log.info("relay.resumed", pid=caller.credentials.pid, domain=name or None)
            nursery.start_soon(self._converse, caller, self._go_on(caller, name, backend))
        for connection, note in self.backlog.resume(held, self.callers):
            self._next_number = max(self._next_number, note.number + 1)
            self._wait(connection, note, was_in=True)
        for name, end, _ in self.backlog.ends():
            if name not in known:
                self.conversations.keeper.hold(name, end)
        nursery.start_soon(self._serve_backlog, nursery)

    async def _go_on(self, caller: ClientConnection, name: str, backend: socket.socket | None) -> None:
        domain = self.conversations.pool.domains.get(name)
        track = caller.link.track
        if domain is not None and backend is not None and not track.is_torn and not caller.has_gone:
            return await self.conversations.resume(caller, domain, backend)
        if backend is not None:
            backend.close()
            self.conversations.keeper.drop(caller.domain_id(name))  # or the vendor daemon would wait for it for ever
        if track.has_begun:
            lost = "it passed on a message, which may be lost" if track.is_torn else "no domain had this handshake any more"
            why = caller.why_not or f"mpsd died while {lost}"  # the channel may come that its domain passes to it
            return await self.conversations.refusals.hold(caller, domain, why)
        self.hang_ups.watch(caller.connection, partial(_leave, caller))
        return await self.conversations.run(caller)

    async def settled(self) -> None:
        """While quitting, once clients cannot find the sockets: wait until no client waits there or is being refused."""
        refusals = self.conversations.refusals
        while True:
            if not refusals.refuser.is_alive():
                return
            if not (self.waiting or self.backlog.of_all or refusals.under_way or any(map(is_readable, self._listeners))):
                return
            await trio.sleep(_SETTLE_SECONDS)

    def _know(
        self, connection: socket.socket, door: str, number: int, track: Track, places: Counter[int]
    ) -> ClientConnection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        credentials = peer_credentials(connection)
        process, why_not, has_gone = _identify(connection, credentials)
        settings = self.conversations.settings
        link = Forwarding(
            connection, settings.may_impersonate, settings.trusts_containers, track=track, speaker=credentials.pid,
            process=process, ids=credentials, closings=self._closings, share=self.ranges.share_of(credentials.uid),
        )  # fmt: skip
        now = trio.current_time()
        caller = ClientConnection(number, door, connection, credentials, process, now, link, why_not, has_gone, places=places)
        self._next_number = max(self._next_number, number + 1)
        self.callers[number] = caller
        places[self.ranges.share_of(credentials.uid)] += 1
        self.conversations.open[process] += 1
        return caller

    async def _converse(self, caller: ClientConnection, conversation: Awaitable[None]) -> None:
        """Run the conversation.  A failure in it ends this conversation and nothing else."""
        who = {"pid": caller.credentials.pid, "uid": caller.credentials.uid}
        waits = False
        try:
            with caller.scope:
                await conversation
            if caller.scope.cancelled_caught and not has_hung_up(caller.connection):
                greeting = [entry for entry in caller.link.transcript or () if isinstance(entry, bytes)]
                waits = self._wait(caller.connection, Note(caller.number, caller.door, greeting))
                if not waits:
                    _log_evicted(caller.credentials, "too many connections, and it never sent a message")
        except (WrongSpeaker, FatalMessage) as exc:
            if isinstance(exc, FatalMessage):
                self.conversations.offences.note(caller.process, caller.credentials.uid)
            await self.conversations.refusals.hold(caller, None, str(exc))
        except MpsdError as exc:
            log.warning("relay.dropped", **who, why=str(exc))
        except OSError as exc:
            if not has_hung_up(caller.connection):  # mpsd's own trouble
                await self.conversations.refusals.hold(caller, None, f"mpsd failed: {exc.strerror}")
            log.info("relay.lost", **who, why=exc.strerror)
        except trio.Cancelled:
            raise  # mpsd leaves: the keeper continues to hold the connection
        except Exception:
            log.exception("relay.bug", **who)
            await self.conversations.refusals.hold(caller, None, "mpsd failed; closed, it would run without MPS")
        self.hang_ups.forget(caller.connection)
        if waits:
            caller.connection.close()  # and no more: the backlog has it too
        else:
            caller.link.close()
        self.conversations.keeper.drop(caller.client_id)
        self.conversations.progress.end(caller.link.track)
        del self.callers[caller.number]
        self._forget(caller)

    def _forget(self, caller: ClientConnection) -> None:
        """Give the places back.  With the last connection of a process its offences are forgotten."""
        shared, share = self.conversations, self.ranges.share_of(caller.credentials.uid)
        caller.places[share] -= 1
        if not caller.places[share]:
            del caller.places[share]
        if caller.process is not None:
            shared.assignment.separation.hung_up(caller.process)
        shared.open[caller.process] -= 1
        if not shared.open[caller.process]:
            del shared.open[caller.process]
            shared.offences.forget(caller.process)

    async def _make_room(self) -> None:
        """Return at once below the bound.  At it, wait until a silent client is in the backlog or another has ended.

        Further clients queue in the kernel, they are not refused.
        """
        while len(self.callers) + len(self.waiting) >= self.conversations.settings.max_connections:
            self._set_silent_aside()
            await trio.sleep(_ROOM_SECONDS)

    def _set_silent_aside(self) -> None:
        """Put clients into the backlog that sent nothing for long after their domain did: those of the user with most."""
        latest = trio.current_time() - self.conversations.settings.silent_seconds
        links = ((caller, caller.link) for caller in self.callers.values())
        silent = [caller for caller, link in links if link.transcript and not link.has_spoken and link.greeted_at < latest]
        if silent:
            share_of = self.ranges.share_of
            [(greediest, _)] = Counter(share_of(caller.credentials.uid) for caller in silent).most_common(1)
            for caller in [each for each in silent if share_of(each.credentials.uid) == greediest][:ACCEPTED]:
                if not is_readable(caller.connection):  # else its message may be taken before this cancels, and be lost
                    caller.scope.cancel()


def _log_evicted(who: Credentials, why: str) -> None:
    effect = "had it been a CUDA process, it would now run without MPS"
    log.warning("relay.evicted", pid=who.pid, uid=who.uid, why=why, effect=effect)


def _leave(caller: ClientConnection) -> None:
    """Cancel the wait of a caller that hung up.  A link notices by itself, after it has read all messages sent before."""
    if not caller.link.has_run:
        caller.scope.cancel()


def _process_at(connection: socket.socket, credentials: Credentials) -> ProcessId | None:
    return _identify(connection, credentials)[0]


def _identify(connection: socket.socket, credentials: Credentials) -> tuple[ProcessId | None, str, bool]:
    """Return the process that connected; or why it is not known, and whether it has ended.

    A wrong one would get these limits, or be ended.
    """
    try:
        return peer_process(connection, credentials), "", False
    except PeerEnded as exc:
        return None, str(exc), True
    except OSError as exc:
        return None, f"mpsd cannot see who it is: {exc.strerror}", False
