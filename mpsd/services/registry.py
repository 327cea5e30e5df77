"""The services and the enlisted processes, as the coordinator and the enlistment keep them.

The vault and the pool of domains ask the registry too, so the daemon builds it before them.
"""

from collections.abc import Callable, Set
from math import inf

import trio

from mpsd.domains.services_port import DomainsOf
from mpsd.errors import NoSuchArena
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.services.members import ServiceRecord
from mpsd.services.store import EnlistmentPlan

Service = tuple[str, int]  # the name and the owner of an arena that may not exist yet


class ServiceRegistry:
    """Guards that a placement costs about as much for a user with many enlisted processes as for one with few.

    records: by the id of their arenas.  plans: of enlisted processes; only `plan` and `forget` change it.  grace_until: trio
    time: until then members of an earlier mpsd may rejoin.
    """

    def __init__(self, find: Callable[[str], Arena]) -> None:
        """find: return the arena of this name, or raise NoSuchArena."""
        self.records: dict[int, ServiceRecord] = {}
        self.plans: dict[ProcessId, EnlistmentPlan] = {}
        self.grace_until = -inf
        self._find = find
        self._of_service: dict[Service, set[ProcessId]] = {}

    def plan(self, process: ProcessId, plan: EnlistmentPlan) -> None:
        self.forget(process)
        self.plans[process] = plan
        self._of_service.setdefault((plan.name, plan.uid), set()).add(process)

    def forget(self, process: ProcessId) -> bool:
        """Return whether the process was enlisted."""
        plan = self.plans.pop(process, None)
        if plan is None:
            return False
        of_service = self._of_service[plan.name, plan.uid]
        of_service.remove(process)
        if not of_service:
            del self._of_service[plan.name, plan.uid]
        return True

    def enlisted(self, name: str, owner_uid: int) -> Set[ProcessId]:
        return self._of_service.get((name, owner_uid), set())

    def service_of(self, process: ProcessId | None) -> Service | None:
        """Return the service for which the process enlisted."""
        plan = self.plans.get(process) if process is not None else None
        return None if plan is None else (plan.name, plan.uid)

    def is_served(self, arena_id: int) -> bool:
        """Return whether the arena's service has members, or is stored and may get them back after a restart of mpsd."""
        record = self.records.get(arena_id)
        if record is None:
            return False
        return bool(record.service.members) or (record.is_stored and trio.current_time() < self.grace_until)

    def domains_of_others(self, process: ProcessId | None, domains_of: DomainsOf) -> frozenset[str]:
        """Return the domains of the other members of the process's service, which it has to avoid.

        It need not avoid a member that it succeeds: in a service without standbys, or after its share was dealt anew.
        """
        service = self.service_of(process)
        if service is None:
            return frozenset()
        record = self._record_of(*service)
        if record is not None and not record.settings.standbys:
            return frozenset()
        since = record.dealt.ticks if record is not None and record.dealt is not None else 0
        others = {each for each in self._of_service[service] if each != process and each.start_time >= since}
        domains = {*domains_of(others), *(self.plans[each].domain for each in others)}
        if record is not None:
            members = (each for each in record.service.members if each.process != process)
            domains |= {each.domain for each in members if each.process.start_time >= since}
        return frozenset(domains - {""})

    def _record_of(self, name: str, owner_uid: int) -> ServiceRecord | None:
        try:
            arena = self._find(name)
        except NoSuchArena:
            return None
        return self.records.get(arena.id) if arena.owner_uid == owner_uid else None
