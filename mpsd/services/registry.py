"""The services and the enlisted processes, as the coordinator and the enlistment keep them.

The vault and the pool of domains ask it too, so the daemon builds it before them.
"""

from collections.abc import Callable
from math import inf

import trio

from mpsd.model.process import ProcessId
from mpsd.services.members import ServiceRecord
from mpsd.services.store import EnlistmentPlan

DomainOf = Callable[[ProcessId], str]  # where a process has its contexts; empty: not known


class ServiceRegistry:
    """records: by the id of their arenas.  plans: of enlisted processes.  grace_until: trio time: until then members of an
    earlier mpsd may rejoin."""

    def __init__(self) -> None:
        self.records: dict[int, ServiceRecord] = {}
        self.plans: dict[ProcessId, EnlistmentPlan] = {}
        self.grace_until = -inf

    def is_served(self, arena_id: int) -> bool:
        """Return whether the arena's service has members, or is stored and may get them back after a restart of mpsd."""
        record = self.records.get(arena_id)
        if record is None:
            return False
        return bool(record.service.members) or (record.is_stored and trio.current_time() < self.grace_until)

    def domains_of_others(self, process: ProcessId | None, domain_of: DomainOf) -> frozenset[str]:
        """Return the domains of the other members of the process's service, which it has to avoid."""
        plan = self.plans.get(process) if process is not None else None
        if plan is None:
            return frozenset()
        ours = (p for p, other in self.plans.items() if (other.name, other.uid) == (plan.name, plan.uid))
        domains = {domain_of(each) or self.plans[each].domain for each in ours if each != process}
        for record in self.records.values():
            if (record.arena.name, record.arena.owner_uid) == (plan.name, plan.uid):
                domains |= {each.domain for each in record.service.members if each.process != process}
        return frozenset(domains - {""})
