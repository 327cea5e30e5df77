"""Processes that will be members: mpsd places each apart from other members, from before it initializes CUDA.

Without root mpsd cannot place a process: it returns an environment variable that selects the domain.  A process that enlisted
with an earlier, killed mpsd, and is placed by this one, is kept apart likewise.
"""

from collections.abc import Awaitable, Callable, Container, Mapping

import structlog
import trio
from msgspec import Struct
from msgspec.structs import replace

from mpsd.errors import BadRequest, NotAllowed, TooMany, UnusablePath
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.model.process import ProcessId
from mpsd.services.coordinator import Coordinator
from mpsd.services.store import EnlistmentPlan, ServiceStore

log = structlog.get_logger()
MOST = 4096
MOST_OF_USER = 1024  # so that one user cannot keep the others out
_ROOT = 0


class Place(Struct, frozen=True):
    """A domain, and the variables that a process must set to run in it."""

    domain: str
    environment: Mapping[str, str]


# Finds a domain that is not among these, if possible.  None: mpsd places clients as they connect.
FindPlace = Callable[[frozenset[str]], Awaitable[Place]]


class Enlistment:
    """Guards that members of one service are kept apart, and that the number of enlisted processes is bounded."""

    def __init__(
        self, coordinator: Coordinator, store: ServiceStore, find_place: FindPlace | None, ranges: UidRanges = NO_RANGES,
        placed_uids: Container[int] | None = None,
    ) -> None:
        """Load the stored plans.  ranges: whose uids count as one user.  placed_uids: for whose processes find_place is; None:
        for all.  Raises UnusablePath."""
        self._share_of = ranges.share_of
        self._coordinator, self._store, self._find_place, self._placed_uids = coordinator, store, find_place, placed_uids
        self._registry, self._plans = coordinator.registry, coordinator.registry.plans
        for process, plan in store.plans().items():
            self._registry.plan(process, plan)
        self._one_at_a_time = trio.Lock()  # so that each placement knows the one before

    def resume(self) -> None:
        """Watch the processes that enlisted with an earlier mpsd."""
        for process, plan in list(self._plans.items()):
            try:
                self._coordinator.process_watch.watch(process, plan.by)
            except (BadRequest, TooMany):
                self.forget(process)

    async def enlist(self, name: str, owner_uid: int, process: ProcessId, uid: int) -> Mapping[str, str]:
        """Return the variables that the process must set.  Raises NotAllowed, TooMany, BadRequest (it has ended), Stopping."""
        if self._placed_uids is not None and uid not in self._placed_uids:
            raise NotAllowed(f"mpsd runs without root, and its domains take no processes of user {uid}")
        if process not in self._plans:
            self._check_room(uid)
        self._coordinator.process_watch.watch(process, uid)
        plan = EnlistmentPlan(name, owner_uid, uid)
        self._registry.plan(process, plan)
        if self._find_place is None:
            self._keep(process, plan)
            return {}
        async with self._one_at_a_time:
            place = await self._find_place(self.avoid(process))
            if self._plans.get(process) is plan:  # otherwise it has ended, or enlisted for another service
                self._registry.plan(process, replace(plan, domain=place.domain))
                self._keep(process, self._plans[process])
        return place.environment

    def _check_room(self, uid: int) -> None:
        if len(self._plans) >= MOST:
            raise TooMany(f"{MOST} processes are enlisted, and no more may be")
        share = self._share_of(uid)
        own = sum(self._share_of(plan.by) == share for plan in self._plans.values())
        if kept := hindrance_of_slots(MOST, own, len(self._plans), uid == _ROOT, "enlisted processes"):
            raise TooMany(kept)
        if uid != _ROOT and own >= MOST_OF_USER:
            raise TooMany(f"{MOST_OF_USER} processes of user {share} are enlisted, and no more may be")

    def _keep(self, process: ProcessId, plan: EnlistmentPlan) -> None:
        """Store a plan.  A failure is only logged: the plan is needed only if mpsd is killed."""
        try:
            self._store.enlist(process, plan)
        except UnusablePath as exc:
            log.error("store.failed", statement="a process that enlisted", why=str(exc))

    def forget(self, process: ProcessId) -> None:
        if self._registry.forget(process):
            try:
                self._store.release(process)
            except UnusablePath as exc:
                log.error("store.failed", statement="a process that enlisted and has ended", why=str(exc))

    def avoid(self, process: ProcessId) -> frozenset[str]:
        """Return the domains of the other members of its service."""
        domain_of = self._coordinator.parts.domain_of
        return self._registry.domains_of_others(process, lambda others: {domain_of(each) for each in others})
