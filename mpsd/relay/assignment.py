"""Get a client's grant and the fault domain that takes it; the client waits here for both.

A client without a lease, where that is allowed, passes at once.  Prose: docs/leases.md, docs/domains.md.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.placement_waits import Reason
from mpsd.domains.pool import Pool
from mpsd.domains.rules import vendor_limits as terms
from mpsd.domains.rules.placement import PlacementRequest
from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.errors import MpsdError, Refused, Stopping
from mpsd.host.client_facts import DEVICES_VARIABLE, NOTHING, PINNED_VARIABLE, ClientFacts
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.process_exit import wait_ended
from mpsd.model.lease import DomainPolicy, Grant, Identity, Refusal
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.client_connection import ClientConnection

log = structlog.get_logger()
_T = TypeVar("_T")
_MOST_WISHES = 1024
_LONGEST_PAUSE_SECONDS = 30.0  # between two attempts to read a client
_ENDS = 64  # processes whose end is acted on in one turn of the event loop: one user's can wait by the thousand


class Admission(Protocol):
    """Decides what a client may use (leases/lease_book.py)."""

    def grant_of(self, process: ProcessId) -> Grant | None: ...
    def identity_of(self, process: ProcessId) -> Identity | None: ...
    def leave(self, process: ProcessId) -> None: ...
    async def admit(self, process: ProcessId | None, credentials: Credentials, told: Callable[[str], None]) -> Grant: ...


class Separation(Protocol):
    """Decides which clients are kept apart because of faults, and which have to wait before they start
    (faults/incidents.py)."""

    def key_of(self, process: ProcessId, is_grouped: bool = False) -> str:
        """Return the key of the domain for the process; empty: any domain.

        is_grouped: its lease places it in the domain of a group; then only its own key counts, since a domain for the clients
        of a wider key would bring it together with others.
        """

    def pause_of(self, process: ProcessId) -> float:
        """Return the seconds that it has to wait; 0: it may start."""

    def arrived(self, process: ProcessId, domain: Domain, is_again: bool = False) -> None:
        """Note that it connects to the domain; called for each connection, when its turn has come.

        is_again: with a connection that was linked before, perhaps to another domain.
        """

    def served(self, process: ProcessId, domain: Domain) -> None:
        """Note that a descriptor is passed on its connection: from now on it may have a channel to a server of the domain."""

    def hung_up(self, process: ProcessId) -> None:
        """Note that a connection has ended."""


class Assignment(Struct):
    """Guards that no client is placed before mpsd knows which clients are in which domain, and what each may use."""

    pool: Pool
    admission: Admission
    separation: Separation
    is_per_gpu: bool
    reader: ClientFacts
    may_place: trio.Event = field(default_factory=trio.Event)  # set: every domain that a caller may be in is known
    _ends: trio.Semaphore = field(default_factory=partial(trio.Semaphore, _ENDS))
    _wishes: dict[object, str] = field(default_factory=dict)  # a domain, for a process, or the next with a lease or cgroup

    def wish(self, process: ProcessId, uid: int | None, domain: str) -> None:
        """Request a domain for the next process with the same lease; without a lease, of that user in the same cgroup.

        At the bound the oldest request is forgotten.
        """
        while len(self._wishes) >= _MOST_WISHES:
            del self._wishes[next(iter(self._wishes))]
        self._wishes[self._likeness(process, uid)] = domain

    def _wish_for(self, process: ProcessId | None, uid: int) -> str:
        """Return the request for the process, which keeps it: mpsd may forget where it was before it asks for a context."""
        wish = self._wishes.pop(process, "") or self._wishes.pop(self._likeness(process, uid), "")
        if wish and process is not None:
            self._wishes[process] = wish
        return wish

    def _likeness(self, process: ProcessId | None, uid: int | None) -> object:
        grant = self.admission.grant_of(process) if process else None
        if grant and grant.lease_id is not None:
            return grant.lease_id
        identity = self.admission.identity_of(process) if process else None
        return (uid, identity.cgroups if identity else ())

    def take_over(self, caller: ClientConnection, domain: Domain) -> None:
        """Know a client of an earlier mpsd again, which may have a channel."""
        if caller.process is None:  # the domain is its user's all the same
            domain.join(None, caller.credentials.uid, domain.key)
        else:
            domain.admit(caller.process)
            if caller.process not in domain.members:  # else its next connection could go to another domain
                self.pool.take_over(domain, caller.process, caller.credentials.uid)
        self.note_channel(caller, domain)

    def note_channel(self, caller: ClientConnection, domain: Domain, is_by_domain: bool = True) -> None:
        """Note that the process may have a channel, also if it breaks the handshake, or has left with another connection.

        is_by_domain: the domain has passed a descriptor.  A client that has passed one, and leaves before that, takes no place.
        """
        if caller.process is not None:
            self.separation.served(caller.process, domain)
            if is_by_domain:
                self.pool.attach(domain, caller.process, caller.credentials.uid)
        elif is_by_domain:
            domain.unseen.note(caller.connection)

    async def find_place(self, caller: ClientConnection) -> tuple[Domain, Grant] | None:
        """Return its grant and a domain that takes it; None if its process ends first.  Raise Refused, Stopping or OSError."""
        process = caller.process
        grant = self.admission.grant_of(process) if process else None
        is_free = process is None or not self._pause_of(process)
        unread = await self._read(caller)
        wish = ""
        if not unread and grant and is_free and self.may_place.is_set():
            ask = self._ask(caller, grant)
            if at_once := self.pool.place_now(ask, process):
                return at_once, grant
            wish = ask.wish
        found: list[tuple[Domain, Grant]] = []
        trouble: MpsdError | OSError | None = None
        async with trio.open_nursery() as nursery:
            if process is not None:
                nursery.start_soon(self._cancel_when_gone, process, nursery.cancel_scope)
            try:
                found.append(await self._wait_for_place(caller, unread, wish))
            except (Stopping, Refused, OSError) as exc:
                trouble = exc  # raised below: out of a nursery it would come as a group
            nursery.cancel_scope.cancel()
        if trouble:
            raise trouble
        if not found and process is not None:
            self.admission.leave(process)  # it may have been admitted as it ended
        return found[0] if found else None

    async def _cancel_when_gone(self, process: ProcessId, scope: trio.CancelScope) -> None:
        await wait_ended(process, self._ends)
        scope.cancel()

    async def _read(self, caller: ClientConnection) -> str:
        """Read what it was started with, anew for each connection; return why that failed, or an empty text."""
        if caller.process is None:
            return ""
        try:
            caller.facts = await self.reader.read(caller.process)
        except Unreadable as exc:
            caller.facts = NOTHING
            return str(exc)
        return ""

    async def _wait_for_place(self, caller: ClientConnection, unread: str, wish: str) -> tuple[Domain, Grant]:
        def told(reason: str) -> None:
            log.info("client.waiting", process=caller.process and caller.process.pid, uid=caller.credentials.uid, reason=reason)

        def told_here(reason: str) -> None:
            """Of what the queue of admission does not know; about this client alone, so no sign of a sick machine."""
            self.pool.waits.explain(caller.process, Reason(reason))
            told(reason)

        await self.may_place.wait()
        grant = await self._unless_stopping(partial(self._admit, caller, unread, told, told_here))
        with self.pool.waits.begin(caller.process, caller.credentials.uid):
            while caller.process and (pause := self._pause_of(caller.process)):
                told_here(f"it has faulted too often in a row: its next start is in {pause:.0f} s")
                await trio.sleep(pause)
        return await self._place(caller, self._ask(caller, grant, wish), grant), grant

    async def _admit(
        self, caller: ClientConnection, unread: str, told: Callable[[str], None], told_here: Callable[[str], None]
    ) -> Grant:
        """Return its grant.  It is read again until mpsd knows who it is: no read that fails for now holds it for ever."""
        while True:
            with self.pool.waits.begin(caller.process, caller.credentials.uid):
                await self._wait_until_read(caller, unread, told_here)
            try:
                return await self.admission.admit(caller.process, caller.credentials, told)
            except Unreadable as exc:
                unread = str(exc)

    async def _place(self, caller: ClientConnection, ask: PlacementRequest, grant: Grant) -> Domain:
        """Return a domain that takes it.  It leaves one again if it got another key while it waited, as by a conviction."""
        while True:
            domain = await self.pool.place(ask, caller.process)
            now = self._ask(caller, grant, ask.wish)
            if now.key == ask.key:
                return domain
            ask = now

    def _pause_of(self, process: ProcessId) -> float:
        """Return its pause; a process that has a place keeps it."""
        return 0.0 if self.pool.home_of(process) is not None else self.separation.pause_of(process)

    async def _wait_until_read(self, caller: ClientConnection, unread: str, told: Callable[[str], None]) -> None:
        """Retry until the process can be read: one that cannot be read might lift its limits."""
        pause = 1.0
        while unread:
            told(unread)
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            unread = await self._read(caller)

    async def _unless_stopping(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `act`, or raise Stopping once mpsd takes no new clients.  Raise what `act` raises."""
        found: list[_T] = []
        trouble: Refused | OSError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_stopping, nursery.cancel_scope)
            try:
                found.append(await act())
            except (Refused, OSError) as exc:
                trouble = exc  # raised below: out of a nursery it would come as a group
            nursery.cancel_scope.cancel()
        if trouble:
            raise trouble
        if not found:
            raise Stopping("mpsd is quitting and takes no new clients")
        return found[0]

    async def _cancel_when_stopping(self, scope: trio.CancelScope) -> None:
        await self.pool.stopping.wait()
        scope.cancel()

    def limits(self, caller: ClientConnection, domain: Domain, grant: Grant) -> ClientLimits:
        """Return the limits in the domain's terms.  Raise Refused for a client that would lift its limit."""
        if grant.memory_bytes and caller.process:
            variable = caller.facts.variables.get(PINNED_VARIABLE)
            visible = {uuid: ordinal for ordinal, uuid in enumerate(domain.gpus)}
            if trouble := terms.overrides(variable, visible):
                raise Refused(Refusal.ERROR, trouble)
        return terms.of_grant(grant, domain.gpus)

    def _ask(self, caller: ClientConnection, grant: Grant, wish: str = "") -> PlacementRequest:
        """Return its request; wish: of an earlier one that no domain could take at once."""
        key = "" if grant.domain is DomainPolicy.SHARED else f"{grant.domain}:{grant.domain_key}"
        if grant.domain is not DomainPolicy.OWN and caller.process is not None:
            key = self.separation.key_of(caller.process, is_grouped=grant.domain is DomainPolicy.GROUP) or key
        uid = caller.credentials.uid
        if not wish and self._wishes and self.pool.home_of(caller.process) is None:
            wish = self._wish_for(caller.process, uid)
        gpus = self._gpus_of(caller, grant)
        return PlacementRequest(uid, gpus, key, wish, named=named(caller.facts.variables.get(DEVICES_VARIABLE, ""), gpus))

    def _gpus_of(self, caller: ClientConnection, grant: Grant) -> frozenset[str]:
        """Return the GPUs of its lease, or else of its domain.

        A client that names one GPU by UUID gets a domain of only that GPU.  One that names ordinals gets a domain of all GPUs:
        in another the ordinals would mean other GPUs (the daemon's CUDA_VISIBLE_DEVICES renumbers).
        """
        everything = frozenset(self.pool.gpus)
        if grant.gpus and frozenset(grant.gpus) <= everything:
            return frozenset(grant.gpus)
        if not self.is_per_gpu or len(everything) < 2 or caller.process is None:
            return everything
        only = named(caller.facts.variables.get(DEVICES_VARIABLE, ""), everything)
        chosen = only if len(only) == 1 else everything
        return everything if self.pool.rules(chosen).is_exclusive else chosen


def named(visible: str, gpus: frozenset[str]) -> frozenset[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by UUID or the beginning of one; empty if a word is anything else."""
    words = visible.split(",", len(gpus))
    if len(words) > len(gpus):  # no list of different ones, and it may have ten thousand
        return frozenset()
    found: set[str] = set()
    for word in words:
        meant = [uuid for uuid in gpus if len(word.strip()) > len("GPU-") and uuid.startswith(word.strip())]
        if len(meant) != 1:
            return frozenset()
        found.update(meant)
    return frozenset(found)
