"""The daemon behind the socket, in memory: a lease book that adds up, domains, and the board of the commands' tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from mpsd.api.ports import Ports
from mpsd.domains.placement_waits import PlacementWait
from mpsd.domains.rules.placement import Join
from mpsd.errors import NoRoom, NoSuchClient, NoSuchLease
from mpsd.health.rules import problems as health
from mpsd.health.rules.problems import HealthFacts
from mpsd.host.processes import process_id
from mpsd.leases.event_log import LeaseEvents
from mpsd.model.arena import KeeperView
from mpsd.model.client import ClientView
from mpsd.model.device_names import find_device
from mpsd.model.domain import DomainState, DomainView, ServerView
from mpsd.model.lease import Grant, Identity, Lease, LeaseSpec, LeaseState, Selector, SelectorKind
from mpsd.model.process import ProcessId
from mpsd.model.stop import Asker, Manner, Report, Stopped, Target, TargetKind
from mpsd.stop.rules import plan
from tests.unit.api.fake_arenas import FakeArenas
from tests.unit.api.fake_arenas import furnish as furnish_arenas
from tests.unit.api.fake_failover import FakeFailover
from tests.unit.api.fake_failover import furnish as furnish_failover
from tests.unit.api.fake_incidents import NOW as NOW
from tests.unit.api.fake_incidents import FaultsInMemory, known_faults
from tests.unit.commands.language.fake_board import DEVICES, FakeBoard

UUIDS = tuple(device.uuid for device in DEVICES)


@dataclass(frozen=True)
class FakeQueued:
    position: int
    uid: int
    reason: str
    lease_id: int | None = None
    process: ProcessId | None = None
    waited_seconds: float = 1.5
    deadline: float | None = None


@dataclass
class FakeLeases:
    """One GPU's worth of shares: what does not fit waits, or is refused."""

    publish: Callable[[str, Mapping[str, Any]], None]
    made: dict[int, Lease] = field(default_factory=dict)
    granted: dict[ProcessId, Grant] = field(default_factory=dict)
    identities: dict[ProcessId, Identity] = field(default_factory=dict)
    waiting: list[FakeQueued] = field(default_factory=list)
    next_id: int = 1
    unsettled: list[str] = field(default_factory=list)  # changes that a power cut would undo

    async def meet(self, uid: int) -> None:
        """No quota depends on the user's groups."""

    def create(self, owner_uid: int, spec: LeaseSpec, for_all_users: bool = False) -> Lease:
        memory = {find_device(DEVICES, name).uuid: size for name, size in spec.memory_bytes.items()}
        spec = replace(spec, gpus=tuple(find_device(DEVICES, name).uuid for name in spec.gpus), memory_bytes=memory)
        taken = sum(lease.spec.sm_percent for lease in self.made.values() if lease.state is LeaseState.ACTIVE)
        fits = taken + spec.sm_percent <= 100
        if not fits and not spec.wait_seconds:
            raise NoRoom(f"{spec.sm_percent:g} % do not fit beside {taken:g} %")
        state = LeaseState.ACTIVE if fits else LeaseState.QUEUED
        expires_at = NOW + spec.ttl_seconds if spec.ttl_seconds else None
        lease = Lease(self.next_id, owner_uid, spec, state, NOW, expires_at, for_all_users)
        self.made[lease.id], self.next_id = lease, self.next_id + 1
        self._tell("lease.created", lease)
        return lease

    def renew(self, lease_id: int, ttl_seconds: float | None) -> Lease:
        lease = replace(self.find(lease_id), expires_at=NOW + ttl_seconds if ttl_seconds else None)
        self.made[lease_id] = lease
        self._tell("lease.renewed", lease)
        return lease

    def release(self, lease_id: int) -> Lease:
        lease = self.find(lease_id)
        del self.made[lease_id]
        self._tell("lease.released", lease)
        return lease

    async def settled(self) -> None:
        self.unsettled.clear()

    def _tell(self, topic: str, lease: Lease) -> None:
        self.unsettled.append(topic)
        LeaseEvents(self.publish).of_lease(topic.removeprefix("lease."), lease)

    def find(self, lease_id: int) -> Lease:
        if lease_id not in self.made:
            raise NoSuchLease(f"lease {lease_id} is not in the book")
        return self.made[lease_id]

    def leases(self) -> list[Lease]:
        return list(self.made.values())

    def grants(self) -> Mapping[ProcessId, Grant]:
        return self.granted

    def grant_of(self, process: ProcessId) -> Grant | None:
        return self.granted.get(process)

    def queue(self) -> list[FakeQueued]:
        return self.waiting

    @property
    def queued(self) -> int:
        return len(self.waiting)

    def identity_of(self, process: ProcessId) -> Identity | None:
        return self.identities.get(process)

    def uid_of(self, process: ProcessId) -> int | None:
        identity = self.identities.get(process)
        return identity.uid if identity else None

    def admit(self, pid: int, uid: int, grant: Grant, process: ProcessId | None = None) -> ProcessId:
        process = process or ProcessId(pid, 10 * pid)
        self.granted[process] = grant
        self.identities[process] = Identity(process, uid, cgroups=("/system.slice/train.service",), container="train.service")
        return process


@dataclass
class FakeDomains:
    board: FakeBoard
    known: dict[str, DomainView] = field(default_factory=dict)
    members: list[ClientView] = field(default_factory=list)
    done: list[tuple[object, ...]] = field(default_factory=list)
    late: list[PlacementWait] = field(default_factory=list)

    def add(self, name: str, state: DomainState = DomainState.READY, clients: int = 0, uid: int | None = None) -> None:
        number = len(self.known) + 1
        self.known[name] = DomainView(name, state, frozenset(UUIDS), uid, clients, 48, bool(clients), number)

    def views(self) -> list[DomainView]:
        return list(self.known.values())

    def servers(self, domain: str) -> list[ServerView]:
        return [server for server in self.board.running if server.domain == domain]

    def clients(self, pid: int | None = None) -> list[ClientView]:
        return [view for view in self.members if pid in (None, view.process.pid)]

    def waiting(self) -> list[PlacementWait]:
        return self.late

    async def create(self, gpus: tuple[str, ...]) -> str:
        self.done.append(("create", gpus))
        name = f"d{len(self.known) + 1}"
        self.add(name, DomainState.STARTING)
        return name

    async def drain(self, name: str) -> None:
        self.done.append(("drain", name))

    async def recycle(self, name: str) -> None:
        self.done.append(("recycle", name))

    async def move(self, process: ProcessId, domain: str) -> None:
        self.done.append(("move", process.pid, domain))


@dataclass
class FakeStopper:
    """Ends the processes with that pid or in that cgroup, in the book of leases; each user has a cgroup too."""

    leases: FakeLeases
    asked: list[tuple[Target, Manner]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    async def stop(self, target: Target, manner: Manner, asker: Asker) -> Report:
        self.asked.append((target, manner))
        who = self.leases.identities.values()
        named = [(each, {*each.cgroups, f"/users/{each.uid}", str(each.process and each.process.pid)}) for each in who]
        inside = [each for each, names in named if target.value in names]
        mine = [each.process for each in inside if each.process and asker.may_end(each.uid, (1,))]
        if target.kind is TargetKind.PID and not mine:
            raise NoSuchClient(f"no client has pid {target.value}")
        self.done += [process.pid for process in mine]
        steps = plan(manner, is_client=True)
        return Report([Stopped(process, "d1", steps) for process in mine], len(inside) - len(mine))


@dataclass
class Fakes:
    """Everything behind the socket, and the processes of the machine by pid."""

    leases: FakeLeases
    board: FakeBoard = field(default_factory=lambda: FakeBoard(tuple(replace(each, multiprocessors=132) for each in DEVICES)))
    domains: FakeDomains = field(init=False)
    stopper: FakeStopper = field(init=False)
    arenas: FakeArenas = field(init=False)
    faults: FaultsInMemory = field(default_factory=known_faults)
    processes: dict[int, int] = field(default_factory=dict)  # start times
    has_every_process: bool = False  # those of this machine too
    namespaces: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of processes in containers
    is_stopping: bool = False
    ends_at: float | None = None

    def __post_init__(self) -> None:
        self.domains = FakeDomains(self.board)
        self.stopper = FakeStopper(self.leases)
        self.arenas = FakeArenas(self.leases.publish)
        self.failover = FakeFailover(self.arenas)

    def find_process(self, pid: int) -> ProcessId | None:
        if pid not in self.processes:
            return process_id(pid) if self.has_every_process else None
        return ProcessId(pid, self.processes[pid])

    def problems(self) -> list[str]:
        return health.problems(HealthFacts(self.domains.views(), Join("d1"), self.is_stopping))

    def uid_of(self, pid: int) -> int | None:
        return next((each.uid for each in self.domains.members if each.process.pid == pid), None)

    def owner_of(self, process: ProcessId) -> int | None:
        return next((each.uid for each in self.domains.members if each.process == process), None)

    def services(self) -> Ports:
        return Ports(
            leases=self.leases,
            domains=self.domains,
            board=self.board,
            stopper=self.stopper,
            faults=self.faults,
            find_process=self.find_process,
            uid_of=self.uid_of,
            owner_of=self.owner_of,
            namespaces_of=lambda pid: self.namespaces.get(pid, (1,)),
            is_stopping=lambda: self.is_stopping,
            problems=self.problems,
            warnings=list,
            ends_at=lambda: self.ends_at,
            started_at=NOW,
            facts={"backend": "gpu", "mode": "privileged"},
            arenas=self.arenas,
            failover=self.failover,
            keeper=lambda: KeeperView("works", (4711,), 2),
        )

    def changes(self) -> tuple[object, ...]:
        """Return the effects that a change would have."""
        done = (list(self.board.ended), list(self.domains.done), list(self.stopper.done), dict(self.faults.held))
        return (dict(self.leases.made), self.board.present, dict(self.arenas.made), dict(self.failover.views), *done)


def furnished(publish: Callable[[str, Mapping[str, Any]], None]) -> Fakes:
    """Two users: 1000 with lease 1, client 586 in domain d1; 2000 with lease 2, client 700 in domain d2; each waits too.
    Arenas: fake_arenas.py, furnish."""
    fakes = Fakes(FakeLeases(publish))
    fakes.domains.add("d1", clients=1, uid=1000)
    fakes.domains.add("d2", DomainState.FAULT, clients=1, uid=2000)
    fakes.domains.add("d3")
    for number, (uid, pid) in enumerate(((1000, 586), (2000, 700)), 1):
        lease = fakes.leases.create(uid, LeaseSpec(f"training-{uid}", selector_of(uid), sm_percent=30.0, ttl_seconds=60.0))
        process = fakes.leases.admit(pid, uid, Grant(f"lease {lease.id}, by uid {uid}", lease.id, sm_percent=30.0))
        server = fakes.board.add_server(uid=uid, clients=(pid,), domain=f"d{number}")
        fakes.domains.members.append(ClientView(process, uid, f"d{number}", server))
        fakes.processes[pid] = process.start_time
        queued = ProcessId(pid + 1, 10 * pid + 10)
        fakes.leases.waiting.append(FakeQueued(number, uid, "no share is free", process=queued))
        fakes.processes[queued.pid] = queued.start_time
    furnish_arenas(fakes.arenas, UUIDS[0])
    furnish_failover(fakes.failover)
    return fakes


def selector_of(uid: int) -> Selector:
    return Selector(SelectorKind.TOKEN, f"a-secret-of-user-{uid}")
