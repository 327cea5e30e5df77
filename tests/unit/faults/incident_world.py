"""A incidents with a real pool of domains that have no vendor daemons, a real store, and the clock of the test."""

import os
from collections.abc import Callable
from pathlib import Path

import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.log_lines import ServerFault
from mpsd.faults.incidents import Incidents
from mpsd.faults.rules.settings import FaultSettings
from mpsd.faults.store import FaultStore
from mpsd.host.process_exit import ProcessExit
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.fault import FaultClass, Incident, Observation, Party, Source
from mpsd.model.process import ProcessId
from mpsd.notify import Outbox

SETTINGS = FaultSettings()
BOOTED_NS = 10**12
EXITED = ProcessExit(0, 0)
SERVER_PIDS = (os.getpid(), os.getppid(), 1)  # of the domains in their order: processes that are there


def describe(process: ProcessId) -> Party:
    return Party(process, 1000, f"p{process.pid}")


def key(process: ProcessId) -> str:
    return describe(process).key


class IncidentWorld:
    """Needs a test with a trio clock. events: the published events; told: each revision of an incident."""

    def __init__(self, path: Path, settings: FaultSettings = SETTINGS, watches_since: int | None = None,
                 describe: Callable[[ProcessId], Party] = describe) -> None:  # fmt: skip
        self.path = path / "faults.db"
        self.store = FaultStore(self.path)
        self.pool = Pool(None, None, (), None, None, None, None)
        self.events: list[tuple[str, dict]] = []
        self.told: list[Incident] = []
        self.outbox = Outbox()
        self.incidents = Incidents(
            self.pool, self.store, settings, describe, lambda *event: self.events.append(event), self._guard, self.outbox,
            clock=self.now_ns, watches_since=watches_since,
        )
        self.incidents.revised.subscribe(self.told.append)
        self.pool.member_forgotten.subscribe(self.incidents.forgotten)

    async def _guard(self, process: ProcessId, base: int, length: int) -> bool:
        return False

    @staticmethod
    def now_ns() -> int:
        return BOOTED_NS + round(trio.current_time() * 1e9)

    # -- domains and clients -----------------------------------------------------------------------------------------

    def domain(self, name: str = "default", gpus: tuple[str, ...] = ("GPU-a",)) -> Domain:
        made = Domain(name, len(self.pool.domains) + 1, gpus, None, 48, state=DomainState.READY)
        self.pool.domains[name] = made
        self.lists(made)
        return made

    def lists(self, domain: Domain, *pids: int) -> None:
        """Report the server's list of the domain's clients."""
        server = SERVER_PIDS[(domain.number - 1) % len(SERVER_PIDS)]
        domain.servers = {server: ServerView(server, 0, "ACTIVE", pids, domain.name, domain.gpus)}

    def arrive(self, domain: Domain, *pids: int) -> list[ProcessId]:
        made = [ProcessId(pid, 7) for pid in pids]
        for process in made:
            self.move(process, domain)
        return made

    def move(self, process: ProcessId, domain: Domain) -> None:
        for each in self.pool.domains.values():
            each.leave(process)
        domain.join(process)
        self.incidents.arrived(process, domain)

    def forget_absent(self) -> None:
        """Ask each server, and forget who is not there any more."""
        for domain in self.pool.domains.values():
            domain.asked_at = trio.current_time()
        self.pool.forget_absent()

    def end(self, process: ProcessId, ending: ProcessExit | None = EXITED) -> None:
        for domain in self.pool.domains.values():
            domain.leave(process)
        self.incidents.left(process, ending)

    async def turn(self, domain: Domain, *states: DomainState) -> None:
        for state in states:
            domain.state = state
            self.pool.notify()
            await trio.testing.wait_all_tasks_blocked()

    # -- what is seen ------------------------------------------------------------------------------------------------

    def see(self, source: Source, domain: str = "", **facts: object) -> None:
        self.incidents.see(Observation(source, self.now_ns(), domain=domain, **facts))

    def xid(self, number: int, domain: str = "", **facts: object) -> None:
        self.see(Source.KERNEL_LOG, domain, xid=number, **{"gpu": "GPU-a"} | facts)

    def say_fault(self, domain: Domain) -> None:
        """Its log does, and its server when it is asked."""
        self.incidents.hear(domain, ServerFault(next(iter(domain.servers))))
        self.incidents.confirm(domain)

    def prove(self, process: ProcessId, **facts: object) -> None:
        self.see(Source.UVM_EVENTS, process=process, is_proof=True, fault_class=FaultClass.MMU, **facts)

    # -- outcomes ---------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.events]

    @property
    def last(self) -> Incident:
        return self.told[-1]

    def again(self, settings: FaultSettings = SETTINGS) -> "IncidentWorld":
        """As another mpsd finds it: the first was killed."""
        return IncidentWorld(self.path.parent, settings)


def running(world: IncidentWorld, nursery: trio.Nursery) -> None:
    nursery.start_soon(world.outbox.run)
    nursery.start_soon(world.incidents.run)
