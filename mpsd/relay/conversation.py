"""Handle one client's connection from its arrival to its end: place it, wait for its turn, link it, and hold it if necessary.

Prose: docs/relay.md.  A connection ends only because its client, or a living domain, ended it.
"""

import errno
import math
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.enforcement import enforce
from mpsd.domains.handshake_gate import Entrant, Pass
from mpsd.domains.limit_guard import ConnectingClient
from mpsd.domains.pool import Pool
from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.errors import MpsdError, Refused, Stopping, WrongSpeaker
from mpsd.host.descriptors import FULL
from mpsd.host.peers import PeerEnded
from mpsd.keeper.connections import KeeperClient
from mpsd.model.process import ProcessId
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection, give_up_when_silent, has_ended_when_it_sends, until_ended
from mpsd.relay.forwarding import LinkSide, has_hung_up
from mpsd.relay.offences import Offences
from mpsd.relay.progress import HandshakeProgress
from mpsd.relay.refusals import Refusals
from mpsd.relay.vendor_connection import connect, until_read

log = structlog.get_logger()
_FAREWELL_SECONDS = 0.5  # a client that has all it needs ends its connection at once
_WINDOW_TURNS = 10  # of a client's patience: so long one may keep other users out; a handshake takes milliseconds (measured)
_OFFENDER_SHARE = 10  # a client that kept a domain waiting before gets a tenth of the patience
_AGAIN_SECONDS = 0.01  # the domain's own task has to see the death that was noticed here
_RETRY_SECONDS = 1.0
_EXHAUSTED = (errno.ENOSPC, errno.ENOMEM, *FULL)  # mpsd's own: epoll entries (/proc/sys/fs/epoll), memory, descriptors
_ARRIVAL_SECONDS = 5.0  # a context takes 0.1 s (measured), 1.5 s among many
_LEAST_ARRIVAL_SECONDS = 2.0  # also of an offender: who comes later may get the next one's limits
_FROZEN_SECONDS = 2.0  # a vendor daemon that answers no client for so long waits for the current one, or is ill
_LONGEST_PAUSE_SECONDS = 30.0
_WHY_DETACHED = {
    LinkSide.SLOW_CLIENT: "silent in its handshake",
    LinkSide.OVERDUE_CLIENT: "others waited until it had left the domain",
}


class _NotSet(Exception):
    """A client's limits could not be set; it waits, without another effect."""


class RelaySettings(Struct, frozen=True):
    max_connections: int
    turn_seconds: float
    silent_seconds: float
    may_impersonate: bool
    trusts_containers: bool = False  # their root is an operator, who may give commands


class Conversations(Struct):
    """What the conversations share: admission, refusals, and which clients have kept a domain waiting."""

    pool: Pool
    keeper: KeeperClient
    progress: HandshakeProgress
    settings: RelaySettings
    assignment: Assignment
    refusals: Refusals
    offences: Offences = field(default_factory=Offences)
    open: Counter[ProcessId | None] = field(default_factory=Counter)  # connections by process
    prepare: Callable[[Domain, int], Awaitable[None]] | None = None  # before a client goes to a domain; may raise MpsdError
    took_handshake: Callable[[float], None] | None = None  # gets the time that a connection spent with its domain

    async def run(self, caller: ClientConnection) -> None:
        """Serve the caller until the client or a living domain ends the connection; hold one that is not known.

        While mpsd lacks what it needs for that, the client waits, unless its handshake cannot be repeated: then raise OSError.
        """
        if caller.why_not:
            if not await self.refusals.is_known_later(caller):
                return
            self._count_as_known(caller)
        if caller.link.is_doubtful:
            raise WrongSpeaker("it, or an ended process with its pid, sent a message before its domain did")
        is_told = False
        while True:
            try:
                if await self._once(caller):
                    return
                pause = _AGAIN_SECONDS
            except OSError as exc:
                if exc.errno not in _EXHAUSTED or caller.link.transcript is None or has_hung_up(caller.connection):
                    raise
                if not is_told:
                    log.warning("relay.exhausted", pid=caller.credentials.pid, uid=caller.credentials.uid, why=exc.strerror)
                is_told, pause = True, _RETRY_SECONDS
            await trio.sleep(pause)

    async def resume(self, caller: ClientConnection, domain: Domain, backend: socket.socket) -> None:
        """Continue a handshake that an earlier mpsd relayed.  The limits that it set are still in force."""
        caller.link.no_way_back()
        caller.link.granted_at = trio.current_time()  # for all that this mpsd knows
        self.assignment.take_over(caller, domain)
        caller.link.note_descriptors(lambda _: self._know(caller, domain))
        with domain.handshake(caller.process):
            async with domain.guard.window(Entrant("adopted", caller.link.share), domain.control) as right:
                end = await self._through(caller, domain, backend, right)
        while caller.why_not and not caller.has_gone:
            await trio.sleep(_RETRY_SECONDS)
            self._know(caller, domain)
        with trio.move_on_after(_FAREWELL_SECONDS):
            await until_ended(caller.connection)
            return
        lost = "its domain ended what an earlier mpsd had relayed, and may have lost a word of"
        await self.refusals.hold(caller, domain, _WHY_DETACHED.get(end, lost))

    def _know(self, caller: ClientConnection, domain: Domain) -> None:
        """Ask again who a client of an earlier mpsd is, if this one could not read it: its context must be no stranger's."""
        if not caller.why_not:
            return
        try:
            caller.identify()
        except (PeerEnded, OSError):
            return
        self._count_as_known(caller)
        self.assignment.take_over(caller, domain)

    def _count_as_known(self, caller: ClientConnection) -> None:
        self.open[None] -= 1
        self.open[caller.process] += 1

    async def _once(self, caller: ClientConnection) -> bool:
        """Place and link the caller once; return True when the connection is over, False if it should be placed again."""
        came = trio.current_time()
        try:
            found = await self.assignment.find_place(caller)
            if found is None:
                return True  # the client went away while it waited
            domain, grant = found
            limits = self.assignment.limits(caller, domain, grant)
        except Stopping:
            await self.refusals.tell(caller, "mpsd is quitting")
            return True
        except Refused as exc:
            await self.refusals.turn_away(caller, exc)
            return True
        began = trio.current_time()
        try:
            with domain.handshake(caller.process):  # from here on: a domain without clients is given to others
                await self._prepare(domain, caller)
                prepared = trio.current_time()
                end = await self._visit(caller, domain, limits)
        except _NotSet as exc:
            log.warning("limits.not_set", pid=caller.credentials.pid, domain=domain.name, why=str(exc), effect="it waits")
            await trio.sleep(_RETRY_SECONDS)
            return False
        over = trio.current_time()
        if self.took_handshake is not None:
            self.took_handshake(over - began)
        log.debug("relay.visited", pid=caller.credentials.pid, domain=domain.name, placed_ms=_ms(began - came),
                  prepared_ms=_ms(prepared - began), linked_ms=_ms(over - prepared))  # fmt: skip
        return await self._after(caller, domain, end) if end else False

    async def _visit(self, caller: ClientConnection, domain: Domain, limits: ClientLimits) -> LinkSide | None:
        """Make one connection to a domain, with these limits in force until the server has read them.

        Return None if the connection failed.  Raise _NotSet if it is not certain that the limits are set.
        """
        pid = caller.credentials.pid or os.getpid()  # as the domain sees it
        async with domain.guard.window(self._entrant(caller, limits), domain.control) as right:
            if self._must_leave(caller, domain):
                return None
            era = domain.guard.era
            try:
                await enforce(self.pool, domain, caller.credentials.uid, limits)
            except MpsdError as exc:
                raise _NotSet(str(exc)) from exc
            if self._must_leave(caller, domain) or domain.guard.era != era:
                return None  # in another era, the limits set before do not hold
            arrival, end, before = domain.guard.expect(pid), None, right.kept_out_seconds()
            arriving_since = math.inf  # of the time in which it keeps others out
            try:
                end = await self._speak(caller, domain, right)
                if end and caller.link.has_passed_descriptors and self._is_over(domain, end):
                    caller.link.pass_on(end)
                    arriving_since = right.kept_out_seconds()
                    await self._see_arrive(caller, domain, arrival)
                return end
            finally:
                domain.guard.forget_arrival(pid, arrival)
                # `_link` and `_detach` judge a client that mpsd disconnected; no one knows which client silenced a domain.
                if end not in _WHY_DETACHED and not domain.silenced.is_set():
                    kept_out = right.kept_out_seconds()
                    linked, arriving = min(kept_out, arriving_since) - before, max(kept_out - arriving_since, 0.0)
                    self._count_stay(caller, domain, linked, arriving)

    def _count_stay(self, caller: ClientConnection, domain: Domain, linked: float, arriving: float) -> None:
        """Count the time in which its connection, and then its arrival, kept other users out, less what an offender gets.

        A single stay is not an offence.  The time in which the domain sets its limits, or starts a server, does not count.
        """
        longest = self.settings.turn_seconds * _WINDOW_TURNS
        free = longest / _OFFENDER_SHARE
        over = max(linked - free, 0.0) + max(arriving - _LEAST_ARRIVAL_SECONDS, 0.0)
        if over > 0:
            self.offences.note_stay(caller.process, caller.credentials.uid, domain.name, min(over, longest - free), longest)

    def _entrant(self, caller: ClientConnection, limits: ClientLimits) -> Entrant:
        uid, offences = caller.credentials.uid, self.open[caller.process] - 1 + self._offences(caller)
        return Entrant(limits, caller.link.share, True, offences, partial(self.offences.is_remembered, uid))

    async def _prepare(self, domain: Domain, caller: ClientConnection) -> None:
        """Return once the domain's sentinel is ready, or no client waits for it.  Raise _NotSet if clients have to."""
        if self.prepare is not None and caller.process not in domain.connected:
            try:
                await self.prepare(domain, caller.credentials.uid)
            except (MpsdError, OSError) as exc:
                raise _NotSet(str(exc)) from exc

    def _must_leave(self, caller: ClientConnection, domain: Domain) -> bool:
        """Return whether the client left the domain while it waited, or leaves it now: ill, and it has no context there."""
        has_left = caller.process is not None and caller.process not in domain.members  # with another of its connections
        if must_leave := has_left or (domain.is_ill and caller.process not in domain.connected):
            domain.leave(caller.process)
        return must_leave

    async def _speak(self, caller: ClientConnection, domain: Domain, right: Pass) -> LinkSide | None:
        backend = await connect(domain.control.socket_path(caller.door), domain.control)
        if backend is None:
            return None
        if caller.process is not None:
            domain.admit(caller.process)
            self.assignment.separation.arrived(caller.process, domain, caller.has_arrived)
            caller.has_arrived = True
        self.keeper.hold(caller.domain_id(domain.name), backend)
        caller.link.note_descriptors(partial(self.assignment.note_channel, caller, domain))
        try:
            return await self._through(caller, domain, backend, right)
        finally:
            if caller.link.has_passed_descriptors and caller.process in domain.members:
                self.assignment.note_channel(caller, domain)

    async def _see_arrive(self, caller: ClientConnection, domain: Domain, arrival: ConnectingClient) -> None:
        """Wait until the client has arrived.

        The server may read a newcomer's limits until its log reports the newcomer (measured: it has by then).  A process begins
        with a connection that only asks for a daemon: no descriptor is passed on it, so it cannot lead to a server.
        """
        patience = _LEAST_ARRIVAL_SECONDS if self._offences(caller) else _ARRIVAL_SECONDS
        self.open[caller.process] -= 1  # now it delays only clients with other limits
        try:
            if not await arrival.settled(patience) and domain.guard.is_on:
                self.offences.note(caller.process, caller.credentials.uid)
                log.info("limits.no_arrival", pid=caller.credentials.pid, domain=domain.name, waited_seconds=patience)
        finally:
            self.open[caller.process] += 1

    def _offences(self, caller: ClientConnection) -> int:
        return self.offences.of(caller.process, caller.credentials.uid)

    async def _through(self, caller: ClientConnection, domain: Domain, backend: socket.socket, right: Pass) -> LinkSide:
        try:
            with backend:
                try:
                    end = await self._link(caller, domain, backend, right)
                finally:  # a command that the client sent must not take effect in the next client's window
                    await until_read(backend, lambda: domain.guard.is_on and self._is_well(domain))
        except BaseException as exc:  # cancelled, it may be a group
            # If mpsd leaves, the keeper holds both ends.  Else the vendor daemon would wait for a client that is gone.
            if isinstance(exc, MpsdError | OSError) or caller.scope.cancel_called:
                self.keeper.drop(caller.domain_id(domain.name))
            raise
        right.give_back()
        self.keeper.drop(caller.domain_id(domain.name))
        domain.mark_stale()
        log.debug("relay.ended", pid=caller.credentials.pid, domain=domain.name, end=end.name,
                  has_spoken=caller.link.has_spoken, has_passed_descriptors=caller.link.has_passed_descriptors)
        return end

    def _is_over(self, domain: Domain, end: LinkSide) -> bool:
        """Return whether the client ended it, or a living domain did."""
        return end is LinkSide.CLIENT or (end is LinkSide.DOMAIN and self._is_well(domain))

    def _is_well(self, domain: Domain) -> bool:
        return domain.control.is_alive() and not domain.silenced.is_set()

    async def _after(self, caller: ClientConnection, domain: Domain, end: LinkSide) -> bool:
        """Return True when it is over, False when the client should be linked again."""
        if end in _WHY_DETACHED:
            return await self._detach(caller, domain, end)
        if caller.link.is_out_of_step:
            await trio.sleep(_RETRY_SECONDS)  # if mpsd closed the connection, the client would run without MPS
            return False
        if self._is_over(domain, end):
            return True
        if caller.link.transcript is not None:
            return False
        await self.refusals.hold(caller, domain, "its domain died in mid-handshake")
        return True

    async def _link(self, caller: ClientConnection, domain: Domain, backend: socket.socket, right: Pass) -> LinkSide:
        """Run the link, until the client keeps others out for too long.

        A domain that falls silent in that time counts as ended, if the client can use another domain.
        """
        share = _OFFENDER_SHARE if self._offences(caller) else 1
        patience = self.settings.turn_seconds / share
        end = LinkSide.DOMAIN

        async def is_well() -> bool:
            """Return whether the daemon has queued the client and answers others; then the next client gets its turn."""
            asked_at = trio.current_time()
            answers = await domain.control.is_responsive(_FROZEN_SECONDS / share)
            if not answers:
                domain.unanswered_since = min(domain.unanswered_since, asked_at)
                domain.mark_stale()  # its next answer shows that it is well again
            if answers:
                right.give_back()
            return answers

        async def end_overdue(scope: trio.CancelScope) -> None:
            nonlocal end
            is_silent = await self._until_overdue(caller, domain, right, patience)
            if scope.cancel_called:
                return  # it has just ended otherwise
            may_have_to_wait = not domain.guard.is_on and caller.link.awaits_domain  # for a server's start, or clients' ends
            if not (is_silent or may_have_to_wait):
                self.offences.note(caller.process, caller.credentials.uid)  # now: its user's next is let in at once
            end = LinkSide.OVERDUE_CLIENT
            scope.cancel()

        trouble: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up_when_silent, caller, domain, nursery.cancel_scope)
            nursery.start_soon(end_overdue, nursery.cancel_scope)
            try:
                end = await caller.link.run(backend, patience, is_well)
            except (MpsdError, OSError) as exc:
                trouble = exc  # raised below: out of a nursery it would come as a group
            nursery.cancel_scope.cancel()
        if trouble:
            raise trouble
        return end

    async def _until_overdue(self, caller: ClientConnection, domain: Domain, right: Pass, patience: float) -> bool:
        """Return when others wait for the client to leave and it has had its time: once to get a channel, and once with it.

        The time in which the domain answers no client does not count; with a channel, no longer than a domain may be silent:
        the client may have sent what silences it, and cannot be linked again to find out.  Return whether that was so.
        """
        link, since = caller.link, trio.current_time()
        silent_until = math.inf
        while True:
            await right.until_overdue(since, _WINDOW_TURNS * patience)
            asked_at = trio.current_time()
            if link.granted_at > since:
                since = link.granted_at
            elif not link.awaits_domain or await domain.control.is_responsive(_FROZEN_SECONDS):
                return False
            else:
                if link.granted_at > -math.inf:
                    silent_until = min(silent_until, asked_at + domain.control.silence_seconds)
                if (since := trio.current_time()) >= silent_until:
                    return True

    async def _detach(self, caller: ClientConnection, domain: Domain, end: LinkSide) -> bool:
        """Handle a client that the vendor daemon was freed of; return whether its connection is over.

        It is linked again when it sends something, or after a pause if it was the domain that did not answer.  If the daemon is
        silent even now, it was not the client's fault.
        """
        is_free = await domain.control.is_responsive(_FROZEN_SECONDS)
        if caller.link.transcript is not None and caller.process not in domain.connected and not is_free:
            domain.leave(caller.process)
            return False
        silenced_it = is_free and caller.link.is_granted and caller.link.awaits_domain
        if end is LinkSide.SLOW_CLIENT or silenced_it:
            self.offences.note(caller.process, caller.credentials.uid)
        pid, why = caller.credentials.pid, _WHY_DETACHED[end]
        log.warning("relay.detached", pid=pid, uid=caller.credentials.uid, domain=domain.name, why=why)
        if caller.link.transcript is None:
            await self.refusals.hold(caller, domain, why)
            return True
        pause = min(2.0 ** self._offences(caller), _LONGEST_PAUSE_SECONDS) if caller.link.awaits_domain else math.inf
        return await has_ended_when_it_sends(caller.connection, pause)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
