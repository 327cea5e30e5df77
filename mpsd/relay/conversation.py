"""One client's connection from its arrival to its end: placed, given its turn, linked, and if need be held.

Prose: docs/relay.md.  A connection ends only because its client, or a living domain, ended it.
"""

import math
import os
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import structlog
import trio

from mpsd import processes
from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.errors import MpsdError, Stopping
from mpsd.model import Credentials, ProcessId
from mpsd.policy.placement import Ask
from mpsd.relay.gate import Pass
from mpsd.relay.link import End, Link
from mpsd.relay.progress import Progress

log = structlog.get_logger()
_FAREWELL_SECONDS = 0.5  # a client that has all it wanted ends its connection at once
_BUSY_SECONDS = 0.01  # between attempts when a vendor daemon's queue of connections is full
_OFFENDER_SHARE = 10  # a process that kept a domain waiting before gets a tenth of the patience
_AGAIN_SECONDS = 0.01  # the domain's own task has to learn of the death that was noticed here
_REFUSAL_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_FROZEN_SECONDS = 2.0  # a vendor daemon that answers nobody for so long waits for the client it speaks with, or is ill
_LONGEST_PAUSE_SECONDS = 30.0


class Keeper(Protocol):
    """Holds connections across the death of mpsd (runtime/keeper.py)."""

    def hold(self, name: str, end: socket.socket, note: int = 0, generation: int = 1) -> None: ...
    def drop(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RelaySettings:
    max_connections: int
    turn_seconds: float
    silent_seconds: float
    may_impersonate: bool
    is_per_gpu: bool


def client_id(number: int, door: str) -> str:
    """What the keeper calls a client's connection."""
    return f"client.{number}.{door}"


@dataclass(slots=True)
class Caller:
    """Who is at the other end, and how far the connection has come."""

    number: int
    door: str  # the socket it came through: control, control_privileged
    connection: socket.socket
    credentials: Credentials
    process: ProcessId | None
    since: float
    link: Link
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def client_id(self) -> str:
        return client_id(self.number, self.door)

    def domain_id(self, domain: str) -> str:
        return f"domain.{self.number}.{domain}"


@dataclass(slots=True)
class Conversations:
    """What the conversations share: where clients go, and who has kept a domain waiting."""

    pool: Pool
    keeper: Keeper
    progress: Progress
    settings: RelaySettings
    refuse_at: str | None = None  # while quitting: the pipe directory whose daemon refuses everybody (ending.py)
    refusal: trio.Event = field(default_factory=trio.Event)  # set: it is known whether there is such a daemon
    refusing: int = 0  # callers who are being refused
    offences: Counter[ProcessId | None] = field(default_factory=Counter)
    may_place: trio.Event = field(default_factory=trio.Event)  # set: every domain that a caller may be in is known
    open: Counter[ProcessId | None] = field(default_factory=Counter)  # connections by process

    async def run(self, caller: Caller) -> None:
        """Until the client or a living domain ends it."""
        while not await self._once(caller):
            await trio.sleep(_AGAIN_SECONDS)

    async def resume(self, caller: Caller, domain: Domain, backend: socket.socket) -> None:
        """Go on in the middle of a handshake that an earlier mpsd relayed."""
        caller.link.no_way_back()
        await self._through(caller, domain, backend, None)
        with trio.move_on_after(_FAREWELL_SECONDS):
            await _until_ended(caller.connection)
            return
        await self._hold(caller, domain, "its domain ended what an earlier mpsd had relayed, and may have lost a word of")

    async def hold(self, caller: Caller, why: str) -> None:
        """A client for which nothing can be done, until it ends its connection."""
        await self._hold(caller, None, why)

    def open_refusal(self, directory: str | None) -> None:
        """From now on newcomers are sent there; None: they wait until mpsd ends."""
        self.refuse_at = directory
        self.refusal.set()

    async def _once(self, caller: Caller) -> bool:
        """True when it is over.  False: it should be placed again."""
        try:
            domain = await self._place(caller)
        except Stopping:
            return await self._refuse(caller)
        if domain is None:
            return True  # the client went away while it waited
        with domain.handshake(caller.process):
            async with domain.gate.turn(self._burden(caller.process)) as right:
                if domain.is_ill and caller.process not in domain.connected:
                    domain.leave(caller.process)
                    return False  # it fell ill while this client waited for its turn
                backend = await self._connect(domain.control.socket_path(caller.door), domain)
                if backend is None:
                    return False
                self.keeper.hold(caller.domain_id(domain.name), backend)
                return await self._through(caller, domain, backend, right)

    def _burden(self, process: ProcessId | None) -> int:
        """How far back in the queue for a domain: a process with many connections, or a slow one, waits for the others."""
        return self.open[process] - 1 + self.offences[process]

    async def _through(self, caller: Caller, domain: Domain, backend: socket.socket, right: Pass | None) -> bool:
        """True when it is over, False when the client should be linked again."""
        try:
            with backend:
                end = await self._link(caller, domain, backend, right)
        except (MpsdError, OSError):
            self.keeper.drop(caller.domain_id(domain.name))  # not when cancelled: then mpsd leaves, and the keeper goes on
            raise
        if right:
            right.give_back()
        self.keeper.drop(caller.domain_id(domain.name))
        domain.mark_stale()
        if end is End.SLOW_CLIENT:
            return await self._detach(caller, domain)
        if caller.link.is_out_of_step:
            await trio.sleep(_RETRY_SECONDS)  # closed, the client would run without MPS
            return False
        if end is End.CLIENT or (domain.control.is_alive() and not domain.silenced.is_set()):
            return True
        if caller.link.transcript is not None:
            return False
        await self._hold(caller, domain, "its domain died in mid-handshake")
        return True

    async def _link(self, caller: Caller, domain: Domain, backend: socket.socket, right: Pass | None) -> End:
        """Run the link; a domain that falls silent in the middle of it counts as ended, if the client can go elsewhere."""
        share = _OFFENDER_SHARE if self.offences[caller.process] else 1
        patience = self.settings.turn_seconds / share

        async def is_well() -> bool:
            """The daemon has put the client on its list and answers others, who may speak with it now; or it does not."""
            answers = await domain.control.is_responsive(_FROZEN_SECONDS / share)
            if answers and right:
                right.give_back()
            return answers

        end = End.DOMAIN
        trouble: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_give_up_when_silent, caller, domain, nursery.cancel_scope)
            try:
                end = await caller.link.run(backend, patience, is_well)
            except (MpsdError, OSError) as exc:
                trouble = exc  # raised below: out of a nursery it would come as a group
            nursery.cancel_scope.cancel()
        if trouble:
            raise trouble
        return end

    async def _detach(self, caller: Caller, domain: Domain) -> bool:
        """The vendor daemon has been freed of a silent client, which is linked again when it speaks; or of one whose words it
        made nothing of, which is after a pause.  If the daemon is silent even now, it was not the client's fault."""
        is_free = await domain.control.is_responsive(_FROZEN_SECONDS)
        if caller.link.transcript is not None and caller.process not in domain.connected and not is_free:
            domain.leave(caller.process)
            return False
        self.offences[caller.process] += 1
        pid = caller.credentials.pid
        log.warning("relay.detached", pid=pid, uid=caller.credentials.uid, domain=domain.name, why="silent in its handshake")
        if caller.link.transcript is None:
            await self._hold(caller, domain, "it was silent in the middle of its handshake")
            return True
        pause = min(2.0 ** self.offences[caller.process], _LONGEST_PAUSE_SECONDS) if caller.link.awaits_domain else math.inf
        with trio.move_on_after(pause):
            await trio.lowlevel.wait_readable(caller.connection)  # for ever: a stopped process may be continued any time
        return _has_ended(caller.connection)

    async def _hold(self, caller: Caller, domain: Domain | None, why: str) -> None:
        """Closed, it would run without MPS: it stays open until the client ends it."""
        log.error("relay.held", pid=caller.credentials.pid, uid=caller.credentials.uid,
                  domain=domain and domain.name, why=why, effect="the client waits; end it and start it again")
        caller.link.no_way_back()
        await _until_ended(caller.connection)

    async def _place(self, caller: Caller) -> Domain | None:
        """A domain that takes it; None when its process ends first."""
        found: list[Domain] = []
        stopping: Stopping | None = None
        ask = Ask(caller.credentials.uid, self._gpus_of(caller.process))
        if at_once := self.pool.place_now(ask, caller.process):
            return at_once
        async with trio.open_nursery() as nursery:
            if caller.process is not None:
                nursery.start_soon(_cancel_when_gone, caller.process, nursery.cancel_scope)
            try:
                await self.may_place.wait()
                found.append(await self.pool.place(ask, caller.process))
            except Stopping as exc:
                stopping = exc  # raised below: out of a nursery it would come as a group
            nursery.cancel_scope.cancel()
        if stopping:
            raise stopping
        return found[0] if found else None

    def _gpus_of(self, process: ProcessId | None) -> frozenset[str]:
        """A client that names one GPU by UUID is served by a domain of that GPU alone.  Ordinals would mean another GPU
        there (the daemon's CUDA_VISIBLE_DEVICES renumbers), so they keep to the domains of all GPUs."""
        everything = frozenset(self.pool.gpus)
        if not self.settings.is_per_gpu or len(everything) < 2 or process is None:
            return everything
        word = processes.environment_variable(process.pid, "CUDA_VISIBLE_DEVICES") or ""
        named = [uuid for uuid in everything if len(word) > len("GPU-") and uuid.startswith(word)]
        chosen = frozenset(named) if len(named) == 1 else everything
        return everything if self.pool.rules(chosen).is_exclusive else chosen

    async def _connect(self, path: str, domain: Domain | None) -> socket.socket | None:
        """A connection to a vendor daemon; None when it has died.  Waits while its queue is full."""
        backend = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        backend.setblocking(False)
        backend.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        while True:
            try:
                backend.connect(path)
                return backend
            except OSError:
                if domain is None or not domain.control.is_alive():
                    backend.close()
                    return None
                await trio.sleep(_BUSY_SECONDS)

    async def _refuse(self, caller: Caller) -> bool:
        """While quitting: a vendor daemon that can serve nobody gives the client its error (805)."""
        self.refusing += 1
        try:
            await self.refusal.wait()  # a daemon starts within its start_seconds, or does not
            backend = await self._connect(f"{self.refuse_at}/{caller.door}", None) if self.refuse_at else None
            if backend is None:
                await trio.sleep_forever()  # until mpsd ends
            with backend:
                end = await caller.link.run(backend, self.settings.turn_seconds, _not_for_long)
        finally:
            self.refusing -= 1
        if end is End.SLOW_CLIENT:
            await self._hold(caller, None, "it was silent while mpsd quit")
        log.info("client.refused", pid=caller.credentials.pid, why="mpsd is quitting")
        return True


async def _not_for_long() -> bool:
    """The daemon that refuses answers in milliseconds, or waits for its peer."""
    await trio.sleep(_REFUSAL_SECONDS)
    return False


async def _cancel_when_gone(process: ProcessId, scope: trio.CancelScope) -> None:
    if (pidfd := processes.open_pidfd(process)) is not None:
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
    scope.cancel()


async def _give_up_when_silent(caller: Caller, domain: Domain, scope: trio.CancelScope) -> None:
    """A client that has contexts there stays: all connections of a process go to one domain."""
    await domain.silenced.wait()
    if caller.link.transcript is not None and caller.process not in domain.connected:
        domain.leave(caller.process)
        scope.cancel()


def _has_ended(connection: socket.socket) -> bool:
    """Whether all that can still be read is the end; nothing is taken out."""
    try:
        data, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not data and not ancillary


async def _until_ended(connection: socket.socket) -> None:
    while await _discard(connection):
        pass


async def _discard(connection: socket.socket) -> bool:
    """Take what the client still says; False once it has hung up."""
    await trio.lowlevel.wait_readable(connection)
    try:
        return bool(connection.recv(65536))
    except BlockingIOError:
        return True
    except OSError:
        return False
