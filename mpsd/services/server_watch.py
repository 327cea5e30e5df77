"""MPS servers that have ended: their clients have lost their contexts, though their processes live.

It also finds the domain of a member, if that was not known when it joined, or has changed.
"""

import time

import trio

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.errors import MpsdError
from mpsd.host import processes
from mpsd.host.process_watch import ProcessWatch
from mpsd.model.process import ProcessId
from mpsd.services.coordinator import Coordinator
from mpsd.services.guard import guarded
from mpsd.services.members import ServiceRecord
from mpsd.services.rules.promotion_types import Placed


class Servers:
    """Guards that the end of a server with members as clients is noticed at once, and that each is watched once."""

    def __init__(self, coordinator: Coordinator, pool: Pool) -> None:
        self._coordinator, self._pool = coordinator, pool
        self._ends = ProcessWatch(self._ended)
        self._clients: dict[ProcessId, tuple[str, frozenset[ProcessId]]] = {}  # by server: its domain, and members

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._ends.run)
            while True:
                with guarded():
                    self.look()
                await self._pool.changed()

    def _domains(self) -> set[str]:
        """Return the domains of all members."""
        return {each.domain for record in self._coordinator.records.values() for each in record.instances.values()}

    def look(self) -> None:
        of_all = [pair for record in self._coordinator.records.values() for pair in record.instances.items()]
        ours = {process.pid: process for process, instance in of_all if not instance.is_gone}
        for name, domain in self._pool.domains.items():
            for pid, server in domain.servers.items():
                if clients := frozenset(ours[each] for each in server.client_pids if each in ours):
                    self._watch(pid, name, clients)
        for domain_name in self._domains():
            if domain_name and self._coordinator.parts.fault_since(domain_name) is not None:
                self._coordinator.fault(domain_name, time.monotonic_ns())  # if the domain's log did not report it
        self._note_places()
        for domain_name in self._domains():
            if self._coordinator.parts.is_contained(domain_name):
                self._coordinator.close(domain_name)

    def _note_places(self) -> None:
        """Note where members live: one without a context can have left the domain in which it joined."""
        present = {name: domain.known_pids for name, domain in self._pool.domains.items()}
        anywhere = set[int]().union(*present.values())  # a user may have a thousand elsewhere
        for record in list(self._coordinator.records.values()):
            for process, instance in list(record.instances.items()):
                is_there = process.pid in present.get(instance.domain, ())
                if process.pid not in anywhere or is_there or instance.is_gone:  # its pid can be another's by now
                    continue
                with guarded(record, pid=process.pid):
                    if found := self._coordinator.parts.domain_of(process):
                        self._place(record, process, found)

    def forgotten(self, process: ProcessId, domain: Domain) -> None:
        """Note that the process, which lives, is in no domain: another user can have this one by now, and fault there."""
        if any(process in clients for name, clients in self._clients.values() if name == domain.name):
            return  # its server ends with the vendor daemon, and the context with it
        for record in list(self._coordinator.records.values()):
            if (instance := record.instances.get(process)) is not None and instance.domain == domain.name:
                with guarded(record, pid=process.pid):
                    self._place(record, process, "")

    def _place(self, record: ServiceRecord, process: ProcessId, domain: str) -> None:
        instance, parts = record.instances[process], self._coordinator.parts
        instance.domain, instance.placed_ns = domain, parts.clock_ns()
        self._coordinator.tell(record, Placed(process, domain))

    def _watch(self, pid: int, domain: str, clients: frozenset[ProcessId]) -> None:
        server = processes.find(pid)
        if server is None and processes.lives(pid):
            return  # not known
        if server is None:
            known = next((each for each in self._clients if each.pid == pid), None)
            if known is None:
                self._lost(domain, clients)
            return
        try:
            self._ends.watch(server, processes.charged_uid(pid))
            self._clients[server] = (domain, clients)
        except MpsdError:
            pass  # it has just ended: the next look finds that, or its clients' own ends show it

    def _ended(self, server: ProcessId, seen_ns: int) -> None:
        domain, clients = self._clients.pop(server, ("", frozenset()))
        self._lost(domain, clients, seen_ns)

    def _lost(self, domain: str, clients: frozenset[ProcessId], seen_ns: int | None = None) -> None:
        for record in list(self._coordinator.records.values()):
            for process, instance in list(record.instances.items()):
                if instance.domain == domain and process in clients and not instance.is_orphan and not instance.is_gone:
                    instance.is_orphan = True
                    self._coordinator.fault(domain, seen_ns or time.monotonic_ns(), process)
