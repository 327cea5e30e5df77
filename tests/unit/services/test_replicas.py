"""When a replica on another GPU serves: only after a fault of the service's GPU, and after the last active is fenced."""

import os
import struct
import time

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import BadRequest, NotAllowed, StaleGeneration
from mpsd.model.process import ProcessId
from mpsd.model.service import Order, Phase, ReplicaOrder, ReplicaReport, ServiceSettings
from mpsd.services.members import MOVE_ASKED
from mpsd.wire.forward_state import CONTROL_AT
from tests.unit.services.fake_machine import FakeMachine

REPORT = ReplicaReport(at=0.0, generation=1, sequence=5, behind_bytes=0, bound_seconds=10.0)
HERE, THERE = "GPU-a", "GPU-b"


def keep(machine: FakeMachine) -> ProcessId:
    """Return a process that writes an arena on the other GPU."""
    process = machine.process("far")
    arena = machine.vault.create("llm.replica")
    machine.vault.made[arena.id] = replace(arena, gpu=THERE)
    machine.vault.open_to_write(process, arena.id)
    machine.processes[process].may_write = False  # in the arena of the service
    return process


async def ask(machine: FakeMachine, process: ProcessId, wait: float = 0.0, **facts: object) -> ReplicaOrder:
    vault = machine.vault
    of = next(each for each in vault.arenas() if each.name == "llm")
    report = replace(REPORT, **({"at": trio.current_time()} | facts))
    return await machine.failover.replicas.follow(2, 1, process, of, report, wait)


async def test_a_replica_serves_once_the_gpu_has_failed_and_the_active_was_killed(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        machine.failover.change(1, ServiceSettings(standbys=3))
        assert (await ask(machine, far)).order is Order.STANDBY
        machine.drained.add(HERE)
        told = await ask(machine, far)
        assert (told.order, told.has_gpu_failed) == (Order.STANDBY, True), "the active still serves"
        machine.see_fault(active)
        assert machine.phase is Phase.FENCING
        assert not machine.processes[active].was_killed
        told = await ask(machine, far, has_gpu_failed=True)
        assert (told.order, told.generation) == (Order.SERVE, 2)
        assert machine.processes[active].was_killed, "no process that shares its GPU could be harmed"
        assert {each.id: each.name for each in machine.vault.arenas()} == {1: "llm.replaced", 2: "llm"}
        again = await ask(machine, far)
        assert (again.order, again.generation) == (Order.SERVE, 2), "the answer may have been lost"
        await machine.failover.join(2, far, 0, 0)
        [view] = [each for each in machine.failover.services() if each.id == 2]
        assert (view.phase, view.writer, view.settings.standbys, view.replica) == (Phase.SERVING, far, 3, None)
        [moved] = machine.topics("moved")
        assert (moved["from_gpu"], moved["to_gpu"], moved["pid"], moved["bound"]) == (HERE, THERE, far.pid, 10.0)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        pytest.param(None, "How many publishes are lost is not known: it goes on", id="not known"),
        pytest.param(0, "No publish is lost: it goes on", id="none"),
        pytest.param(3, "Publishes lost at most: 3: it goes on", id="some"),
    ],
)
async def test_a_move_tells_what_is_lost(machine, steps: int | None, words: str):
    told: list[tuple[str, str]] = []
    async with machine.mpsd():
        await machine.serves("a")
        record, events = machine.coordinator.records[1], machine.coordinator.events
        events.moved.subscribe(lambda gpu, text: told.append((gpu, text)))
        facts = {"from_gpu": HERE, "to_gpu": THERE, "pid": 7, "at": 1.55, "steps": steps, "bound": 10.0}
        events.publish_moved(record, has_gpu_failed=True, why="GPU-a has failed", **facts)
        events.publish_moved(record, has_gpu_failed=True, why=MOVE_ASKED, **facts)  # by its owner: it follows from no failure
    [(gpu, text)] = told
    assert gpu == HERE
    assert text.startswith("service llm of user 1000 was moved to GPU-b, where pid 7 serves: GPU-a has failed. ")
    assert words in text
    assert text.endswith("from its image of " + time.strftime("%H:%M:%S", time.localtime(1)) + ".5, and the bound was 10 s")


@pytest.mark.parametrize("is_seen", [False, True])
async def test_the_word_of_a_replica_alone_is_in_no_incident(machine, autojump_clock: MockClock, is_seen: bool):
    """Any process may say so of its own service, and the incident of the GPU is everybody's."""
    told: list[str] = []
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        machine.coordinator.events.moved.subscribe(lambda gpu, text: told.append(gpu))
        await ask(machine, far)
        if is_seen:
            machine.coordinator.see(machine.of_gpu(48, HERE))
        await machine.die(active)
        machine.vault.fenced(active)
        assert (await ask(machine, far, has_gpu_failed=True)).order is Order.SERVE
        assert machine.topics("moved")
    assert told == [HERE] * is_seen


async def test_a_standby_on_the_same_gpu_goes_first(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, near, far = await machine.serves("a"), await machine.member("b"), keep(machine)
        await ask(machine, far)
        machine.coordinator.see(machine.of_gpu(48, HERE))
        await machine.die(active)
        machine.vault.fenced(active)
        assert machine.order(near) == "serve"
        assert (await ask(machine, far, 1.0, has_gpu_failed=True)).order is Order.STANDBY
        machine.serving(near)
        await machine.die(near)
        machine.vault.fenced(near)
        assert (await ask(machine, far, 1.0, has_gpu_failed=True)).order is Order.SERVE


async def test_a_service_whose_members_die_of_their_work_does_not_lose_the_replica_too(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, _, far = await machine.serves("a"), await machine.member("b"), keep(machine)
        limits = replace(machine.settings.limits, most_promotions=0)  # as many as there have been
        machine.failover.configure(replace(machine.settings, limits=limits))
        await ask(machine, far)
        machine.drained.add(HERE)
        await machine.die(active)
        machine.vault.fenced(active)
        assert machine.phase is Phase.IDLE
        assert (await ask(machine, far, 1.0, has_gpu_failed=True)).order is Order.STANDBY


async def test_an_old_replica_that_has_the_last_record_is_not_behind(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        far, state = keep(machine), os.memfd_create("state")
        machine.vault.made[1] = replace(machine.vault.made[1], state_generation=1)
        os.pwrite(state, struct.pack("=QQ", 10, 8), CONTROL_AT)  # the fifth publish, as in the report
        machine.vault.descriptors[1] = os.dup(state)
        assert (await ask(machine, far)).steps == 0
        await trio.sleep(30)
        assert not machine.topics("behind")
        os.pwrite(state, struct.pack("=QQ", 14, 15), CONTROL_AT)  # two more, and the next one is being written
        machine.vault.descriptors[1] = state
        assert (await ask(machine, far)).steps == 2
        await trio.sleep(30)
        assert [facts["steps"] for facts in machine.topics("behind")] == [2]


async def test_a_process_that_may_serve_where_the_memory_is_goes_first(machine, autojump_clock: MockClock):
    """Unless that GPU has to be reset."""
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        machine.coordinator.see(machine.of_gpu(48, HERE))
        starting = machine.process("c")
        await machine.failover.enlist("llm", machine.vault.made[1].owner_uid, starting, 1000)
        await machine.die(active)
        machine.vault.fenced(active)
        assert (await ask(machine, far, 1.0, has_gpu_failed=True)).order is Order.STANDBY
        machine.drained.add(HERE)
        assert (await ask(machine, far, has_gpu_failed=True)).order is Order.SERVE


async def test_without_a_fault_of_the_gpu_no_replica_serves(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        machine.coordinator.see(machine.of_gpu(48, HERE))  # before the replica followed
        await trio.sleep(1)
        await ask(machine, far)
        machine.coordinator.see(machine.of_gpu(79, THERE))
        await machine.die(active)
        machine.vault.fenced(active)
        assert (await ask(machine, far, 5.0)).order is Order.STANDBY


async def test_what_an_mpsd_saw_of_the_gpu_the_next_one_hears_from_the_replica(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        machine.coordinator.see(machine.of_gpu(79, HERE))
        told = await ask(machine, far, 30.0)
        assert told.has_gpu_failed
        assert trio.current_time() < 10, "it is told at once: mpsd may be killed next"
        machine.end(active)
    async with machine.mpsd():
        assert (await ask(machine, far, 1.0, has_gpu_failed=True)).order is Order.STANDBY, "the active may still write"
        machine.vault.fenced(active)
        assert (await ask(machine, far, has_gpu_failed=True)).order is Order.SERVE


async def test_a_replica_that_is_too_far_behind_is_told_once(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        await trio.sleep(9)
        assert not machine.topics("behind")
        await trio.sleep(10)
        assert [facts["pid"] for facts in machine.topics("behind")] == [far.pid]
        assert machine.failover.replicas.view(1).is_behind
        await ask(machine, far)
        assert not machine.failover.replicas.view(1).is_behind
        await machine.die(active)
        machine.vault.fenced(active)
        await trio.sleep(30)
        assert len(machine.topics("behind")) == 1, "nothing is lost while no member serves"
        machine.vault.fenced(far)
        await trio.sleep(1)
        assert machine.failover.replicas.view(1) is None


async def test_a_replica_whose_arena_is_removed_is_not_shown(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        far = keep(machine)
        await ask(machine, far)
        assert machine.view().replica is not None
        del machine.vault.made[2]
        assert machine.view().replica is None


async def test_only_the_writer_of_an_arena_of_this_user_on_another_gpu_keeps_a_replica(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        far, stranger = keep(machine), machine.process("b")
        with pytest.raises(StaleGeneration):
            await ask(machine, stranger)
        arena = machine.vault.made[2]
        machine.vault.made[2] = replace(arena, gpu=HERE)
        with pytest.raises(BadRequest, match="another GPU"):
            await ask(machine, far)
        machine.vault.made[2] = replace(arena, owner_uid=4711)
        with pytest.raises(NotAllowed, match="4711"):
            await ask(machine, far)
