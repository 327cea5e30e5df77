"""A bug in a task that looks at services ends neither mpsd nor the looks at other services."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs
from trio.testing import MockClock

from mpsd.model.process import ProcessId
from mpsd.model.service import MemberState, Phase
from mpsd.services.coordinator import Coordinator
from mpsd.services.fencing import Fencing
from mpsd.services.heartbeats import Heartbeats
from mpsd.services.members import ServiceRecord
from mpsd.services.move_record import MoveRecord
from mpsd.services.moves import Moves
from mpsd.services.replicas import Replica, Replicas
from mpsd.services.requests import ServiceRequests
from mpsd.services.rules.promotion_types import Placed, Silent
from mpsd.services.server_watch import Servers
from tests.running import running
from tests.unit.services.fake_machine import OWNER, FakeMachine
from tests.unit.services.kept_state import Kept
from tests.unit.services.test_replicas import HERE, REPORT, THERE
from tests.unit.services.test_server_watch import domain_with
from tests.unit.services.test_server_watch import server as server
from tests.unit.vault.machine import Holder, until

pytestmark = pytest.mark.usefixtures("own_descriptors")
BROKEN, WELL = 1, 2
SECONDS = 3.0
Begin = Callable[[FakeMachine, int], Awaitable[None]]


def break_step(monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> list[int]:
    """Let a step fail for the first service; return the services for which it is called from now on."""
    works, called = getattr(where, name), list[int]()

    def step(self: object, of: ServiceRecord | Replica, *rest: object) -> object:
        if name == "tell" and not isinstance(rest[0], Silent):
            return works(self, of, *rest)
        called.append(of.of if isinstance(of, Replica) else of.arena.id)
        if called[-1] == BROKEN:
            raise KeyError(name)
        return works(self, of, *rest)

    monkeypatch.setattr(where, name, step)
    return called


async def served(machine: FakeMachine, arena_id: int, heartbeat: float = 0.0) -> ProcessId:
    process = machine.process(f"of {arena_id}")
    machine.vault.open(process, arena_id)
    await machine.failover.join(arena_id, process, 0, heartbeat)
    machine.failover.ready(arena_id, process)
    machine.failover.serving(arena_id, machine.vault.made[arena_id].generation, process)
    machine.processes[process].may_write = False  # the machine's check knows one service
    return process


async def with_a_heartbeat(machine: FakeMachine, arena_id: int) -> None:
    await served(machine, arena_id, 0.4)
    Kept(machine, 1, arena_id)


async def with_a_replica(machine: FakeMachine, arena_id: int) -> None:
    await served(machine, arena_id)
    far = machine.process("far")
    arena = machine.vault.create(f"replica of {arena_id}")
    machine.vault.made[arena.id] = replace(arena, gpu=THERE)
    machine.vault.open_to_write(far, arena.id)
    machine.processes[far].may_write = False
    works = Replica(arena.id, far, arena_id, 0, trio.current_time(), REPORT)
    machine.failover.replicas._by_arena[arena.id] = works  # its first report would meet the bug in the call


async def with_a_move(machine: FakeMachine, arena_id: int) -> None:
    process, now = await served(machine, arena_id), trio.current_time()
    move = MoveRecord(HERE, THERE, process, machine.process("far"), 99, now, now, now + 60)
    machine.coordinator.records[arena_id].move = move


async def with_nothing(machine: FakeMachine, arena_id: int) -> None:
    await served(machine, arena_id)


@pytest.mark.parametrize(
    ("where", "name", "begin"),
    [
        pytest.param(Coordinator, "tell", with_a_heartbeat, id="heartbeats"),
        pytest.param(Heartbeats, "_fetch_now", with_a_heartbeat, id="states"),
        pytest.param(Replicas, "_look", with_a_replica, id="replicas"),
        pytest.param(Moves, "_look", with_a_move, id="moves"),
        pytest.param(ServiceRequests, "_look_at_time", with_nothing, id="deadlines"),
    ],
)
async def test_a_bug_at_one_service(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, where: type, name: str, begin: Begin
) -> None:
    machine.vault.create("well")
    async with machine.mpsd():
        with capture_logs() as logs:
            called = break_step(monkeypatch, where, name)
            for arena_id in (BROKEN, WELL):
                await begin(machine, arena_id)
            await trio.sleep(SECONDS)
        bugs = [entry for entry in logs if entry["event"] == "service.bug"]
        assert {(entry["service"], entry["owner_uid"]) for entry in bugs} == {("llm", OWNER)}
        assert WELL in called
        assert len(bugs) < 2 * SECONDS / 0.1, "the error is no reason to look more often"  # each 5 ms would be 600


async def test_a_bug_when_a_fault_is_told(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two services have lost their contexts: the second is served again."""
    machine.vault.create("well")
    called = break_step(monkeypatch, Coordinator, "_fault")
    async with machine.mpsd():
        for arena_id in (BROKEN, WELL):
            process = await served(machine, arena_id)
            machine.coordinator.tell(machine.coordinator.records[arena_id], Placed(process, "a"))
        machine.coordinator.fault("a", machine.now_ns())
        assert called == [BROKEN, WELL]
        assert machine.view_of(WELL).members[0].standing is MemberState.FAULTED


async def test_a_bug_of_a_look_at_servers(machine: FakeMachine, server: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine.mpsd():
        first = await machine.serves("a")
        await machine.member("b")
        pool, _ = domain_with(server, first.pid)
        works, failed = Servers._note_places, list[Servers]()

        def fail_once(self: Servers) -> None:
            if not failed:
                failed.append(self)
                raise KeyError
            works(self)

        monkeypatch.setattr(Servers, "_note_places", fail_once)
        with capture_logs() as logs:
            async with running(Servers(machine.coordinator, pool).run):
                await trio.testing.wait_all_tasks_blocked()
                assert failed
                pool.notify()
                server.end()
                await until(lambda: machine.processes[first].was_killed)
        assert [entry["event"] for entry in logs].count("service.bug") == 1
        assert machine.phase is Phase.FENCING


async def test_a_bug_of_a_later_fence(machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine.mpsd():
        first = await machine.serves("a")
        record = machine.coordinator.records[1]
        monkeypatch.setattr(Fencing, "_is_due", lambda *_: 1 / 0)
        with capture_logs() as logs:
            machine.failover.fencing._nursery.start_soon(machine.failover.fencing._later, record, first, 0.1)
            await trio.sleep(1)
        assert [(entry["event"], entry["service"]) for entry in logs] == [("service.bug", "llm")]
