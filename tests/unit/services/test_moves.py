"""A service moves to the replica on another GPU, or stays where it is: whatever dies, and whenever."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import ArenaBusy, BadRequest, MpsdError, NoRoom, NoSuchArena
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import LastRecord, MoveState, MoveView, Order, Phase, ReplicaOrder, ServiceSettings
from tests.unit.services.fake_machine import FakeMachine
from tests.unit.services.test_replicas import HERE, THERE, ask, keep

LAST = LastRecord(1, 7)


@pytest.fixture
def machine(machine: FakeMachine) -> FakeMachine:
    machine.vault.made[1] = replace(machine.vault.made[1], layout_hash="there is one")
    return machine


def move(machine: FakeMachine, arena_id: int = 1) -> MoveView:
    found = next(each for each in machine.failover.services() if each.id == arena_id).move
    assert found is not None
    return found


async def copied(machine: FakeMachine, far: ProcessId, images: int = 2) -> ReplicaOrder:
    """Let the replica report so many images that it has copied, each later than the one before."""
    for _ in range(images):
        await trio.sleep(0.1)
        told = await ask(machine, far, sequence=5)
    return told


async def asked_to_yield(machine: FakeMachine) -> tuple[ProcessId, ProcessId]:
    """Return the active, which was asked for its last barrier, and the process of the replica."""
    active, far = await machine.serves("a"), keep(machine)
    await ask(machine, far)
    machine.failover.move(1, THERE, 60.0)
    assert (await copied(machine, far)).is_moving
    assert machine.order(active) == "yield"
    assert machine.told(active).is_moving
    return active, far


async def stopped(machine: FakeMachine) -> tuple[ProcessId, ProcessId]:
    active, far = await asked_to_yield(machine)
    machine.failover.yielded(1, machine.vault.made[1].generation, active, LAST)
    assert (machine.view_of(1).phase, move(machine).state) == (Phase.MOVING, MoveState.HANDING)
    return active, far


async def test_the_replica_serves_once_it_has_the_last_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        near = await machine.member("b")
        machine.failover.change(1, ServiceSettings(standbys=3))
        assert not (await ask(machine, far)).is_moving
        begun = machine.failover.move(1, THERE, 60.0).move
        assert begun is not None
        assert (begun.state, begun.from_gpu, begun.to_gpu) == (MoveState.COPYING, HERE, THERE)
        assert machine.told(active).is_moving
        assert not machine.told(near).is_moving
        assert machine.order(active) == "serve"
        assert (await ask(machine, far)).is_moving, "an image of before the move is no round"
        assert move(machine).rounds == 0
        await copied(machine, far, 1)
        assert machine.order(active) == "serve", "what changed during the first image takes as long as that one"
        await copied(machine, far, 1)
        assert (move(machine).state, machine.order(active)) == (MoveState.YIELDING, "yield")
        machine.failover.yielded(1, 1, active, LAST)
        assert machine.order(near) == "standby", "it has the memory on the first GPU"
        assert (await ask(machine, far, sequence=6)).order is Order.STANDBY
        assert (await ask(machine, far, sequence=7, behind_bytes=1)).order is Order.STANDBY
        assert (await ask(machine, far, sequence=7, at=None)).order is Order.STANDBY
        told = await ask(machine, far, sequence=7)
        assert (told.order, told.why) == (Order.SERVE, "a move to another GPU was asked for")
        assert {each.id: each.name for each in machine.vault.arenas()} == {1: "llm.replaced", 2: "llm"}
        assert move(machine, 2).state is MoveState.HANDING
        await machine.failover.join(2, far, 0, 0)
        await trio.sleep(0.02)
        machine.failover.serving(2, machine.vault.made[2].generation, far)
        found = machine.view_of(2)
        assert (found.phase, found.writer, found.settings.standbys) == (Phase.SERVING, far, 3)
        assert found.move is not None
        assert (found.move.state, found.move.from_pid, found.move.to_pid) == (MoveState.DONE, active.pid, far.pid)
        assert found.move.pause_ms == pytest.approx(20, abs=1)
        for each in (active, near):
            assert machine.order(each) == "leave"
        [begun_] = machine.topics("moving")
        assert (begun_["from_gpu"], begun_["to_gpu"], begun_["to_pid"]) == (HERE, THERE, far.pid)
        assert [facts["why"] for facts in machine.topics("moved")] == ["a move to another GPU was asked for"]
        await trio.sleep(30)
        assert not machine.topics("unmoved")
        assert not machine.topics("promoted")[1:]
        assert not machine.topics("unserved"), "of the arena that no process can write any more"


async def refused(machine: FakeMachine, gpu: str = THERE) -> str:
    with pytest.raises((ArenaBusy, BadRequest, NoRoom, NoSuchArena)) as caught:
        machine.failover.move(1, gpu, 60.0)
    return str(caught.value)


async def test_what_cannot_move_is_refused_before_anything_changes(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        assert await refused(machine) == "arena llm has no service"
        active = await machine.member("a")
        assert "it is promoting" in await refused(machine)
        machine.serving(active)
        assert await refused(machine, HERE) == "service llm is on GPU GPU-a already"
        assert "has no replica on GPU GPU-b: start a member there" in await refused(machine)
        far = keep(machine)
        await ask(machine, far)
        machine.drained.add(THERE)
        assert "GPU GPU-b, which is drained" in await refused(machine)
        machine.drained.clear()
        whole = machine.vault.made[1]
        machine.vault.become("committed", replace(whole, layout_hash=""))
        assert "has nothing to move" in await refused(machine)
        machine.vault.become("committed", whole)
        assert machine.view_of(1).move is None
        machine.failover.move(1, THERE, 60.0)
        assert await refused(machine) == "service llm moves to GPU GPU-b already"
        assert len(machine.topics("moving")) == 1


# -- cancelled: the service goes on where it was -------------------------------------------------------------------------


async def stays(machine: FakeMachine, why: str) -> None:
    found = move(machine)
    assert found.state is MoveState.CANCELLED
    assert why in found.why
    assert [facts["why"] for facts in machine.topics("unmoved")] == [found.why]
    assert not machine.topics("moved")
    assert {each.id: each.name for each in machine.vault.arenas()} == {1: "llm", 2: "llm.replica"}


async def test_too_few_images_in_time(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        machine.failover.move(1, THERE, 5.0)
        await copied(machine, far, 1)
        await trio.sleep(6)
        await stays(machine, "the replica had copied 1 of 2 images in 5 s")
        assert machine.order(active) == "serve"
        assert not machine.told(active).is_moving
        await machine.member("b")
        machine.failover.move(1, THERE, 5.0)


@pytest.mark.parametrize("has_standby", [False, True])
async def test_no_last_image_in_time(machine: FakeMachine, autojump_clock: MockClock, has_standby: bool) -> None:
    async with machine.mpsd():
        active, _ = await asked_to_yield(machine)
        near = await machine.member("b") if has_standby else None
        await trio.sleep(6)
        await stays(machine, f"pid {active.pid} did not take its last image within 4 s")
        assert machine.order(active) == "serve", "a move costs no active, not even a slow one"
        assert near is None or machine.order(near) == "standby"
        assert not machine.told(active).is_moving


async def test_the_replica_is_too_late(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, far = await stopped(machine)
        machine.failover.ready(1, active)
        await ask(machine, far, 5.0, sequence=6)
        await stays(machine, "did not have the last barrier within 4 s")
        assert machine.order(active) == "serve"
        assert (await ask(machine, far, sequence=7)).order is Order.STANDBY, "two would write"


async def test_there_is_no_image_of_the_last_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, far = await asked_to_yield(machine)
        machine.failover.yielded(1, 1, active, replace(LAST, why="no image was prepared"))
        await stays(machine, "no image of the last barrier: no image was prepared")
        assert (await ask(machine, far, sequence=7)).order is Order.STANDBY
        machine.failover.ready(1, active)
        assert machine.order(active) == "serve", "at once"


async def test_the_image_of_the_last_barrier_fails_later(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, _ = await stopped(machine)
        machine.failover.yielded(1, 1, active, LastRecord(1, 3, "of a barrier before an earlier move"))
        assert move(machine).state is MoveState.HANDING
        machine.failover.yielded(1, 1, active, replace(LAST, why="the imager has ended"))
        await stays(machine, "the imager has ended")
        machine.failover.ready(1, active)
        assert machine.order(active) == "serve"


async def test_a_yield_without_a_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    """Of an earlier client, or since the program's work is done."""
    async with machine.mpsd():
        active, _ = await asked_to_yield(machine)
        near = await machine.member("b")
        machine.failover.yielded(1, 1, active)
        assert machine.order(near) == "serve"
        await trio.sleep(1)
        await stays(machine, "stopped before its last barrier")


async def test_the_active_dies_before_its_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, far = await asked_to_yield(machine)
        near = await machine.member("b")
        await machine.die(active)
        machine.vault.fenced(active)
        await trio.sleep(1)
        await stays(machine, "ended, faulted or stopped before its last barrier")
        assert machine.order(near) == "serve"
        assert (await ask(machine, far, sequence=7)).order is Order.STANDBY


async def test_the_active_dies_after_its_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    """It writes no more: the move is completed."""
    async with machine.mpsd():
        active, far = await stopped(machine)
        await machine.die(active)
        machine.vault.fenced(active)
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        await machine.failover.join(2, far, 0, 0)
        assert machine.view_of(2).phase is Phase.SERVING


@pytest.mark.parametrize("how", [asked_to_yield, stopped])
async def test_the_process_of_the_replica_dies(machine: FakeMachine, autojump_clock: MockClock, how) -> None:
    async with machine.mpsd():
        active, far = await how(machine)
        await machine.die(far)
        machine.vault.fenced(far)
        await trio.sleep(1)
        await stays(machine, f"pid {far.pid}, which kept the replica, has ended")
        machine.failover.ready(1, active)
        assert machine.order(active) == "serve"
        assert machine.topics("unreplicated")


async def test_mpsd_dies(machine: FakeMachine, autojump_clock: MockClock) -> None:
    """The next one knows of no move; one that had stopped serves again."""
    async with machine.mpsd():
        active, far = await stopped(machine)
    async with machine.mpsd():
        await machine.failover.join(1, active, 0, 0)
        machine.failover.yielded(1, 1, active, LAST)  # it repeats its report
        machine.failover.ready(1, active)
        await trio.sleep(1)
        assert machine.order(active) == "serve"
        assert (await ask(machine, far, sequence=7)).order is Order.STANDBY
        assert machine.view_of(1).move is None


async def test_mpsd_dies_after_the_replacement(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        _, far = await stopped(machine)
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
    async with machine.mpsd():
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        await machine.failover.join(2, far, 0, 0)
        assert machine.view_of(2).writer == far


def empty(machine: FakeMachine) -> None:
    """The vault's keeper dies."""
    arena = machine.vault.made[1]
    machine.vault.become("emptied", replace(arena, layout_hash="", commit=5))


async def test_the_keeper_dies_before_the_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        active, _ = await asked_to_yield(machine)
        empty(machine)
        assert machine.order(active) == "serve", "it alone has the memory"
        await trio.sleep(1)
        await stays(machine, "the vault's keeper has died")


@pytest.mark.parametrize("is_in_time", [True, False])
async def test_the_keeper_dies_while_images_are_copied(
    machine: FakeMachine, autojump_clock: MockClock, is_in_time: bool
) -> None:
    """The active gives the memory again: the move goes on if it has done so before its last image is due."""
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        machine.failover.move(1, THERE, 60.0)
        whole = machine.vault.made[1]
        empty(machine)
        await trio.sleep(1)
        assert move(machine).state is MoveState.COPYING
        if is_in_time:
            machine.vault.become("committed", replace(whole, commit=6))
        await copied(machine, far)
        if is_in_time:
            assert (move(machine).state, machine.order(active)) == (MoveState.YIELDING, "yield")
        else:
            await stays(machine, "the vault has lost its memory, and the one that serves has not given it again")


async def test_the_keeper_dies_after_the_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    """The vault cannot tell how far the replica is then.  The active has."""
    async with machine.mpsd():
        active, far = await stopped(machine)
        machine.failover.ready(1, active)
        empty(machine)
        await trio.sleep(1)
        assert machine.order(active) == "leave", "it would begin anew"
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        assert not machine.topics("lost")


async def test_the_keeper_and_the_replica_die_after_the_barrier(machine: FakeMachine, autojump_clock: MockClock) -> None:
    """The newest image has the last barrier: a member that is started makes the arena of it."""
    async with machine.mpsd():
        active, far = await stopped(machine)
        machine.failover.ready(1, active)
        empty(machine)
        await machine.die(far)
        machine.vault.fenced(far)
        await trio.sleep(10)
        assert move(machine).state is MoveState.CANCELLED
        assert machine.order(active) == "leave"
        assert not machine.topics("lost")


async def test_a_replica_that_got_the_name_and_hangs_is_ended(machine: FakeMachine, autojump_clock: MockClock) -> None:
    async with machine.mpsd():
        _, far = await stopped(machine)
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        await trio.sleep(3)
        assert machine.processes[far].is_alive
        await trio.sleep(3)
        assert machine.ended == [far]
        assert not machine.processes[far].is_alive
        assert move(machine, 2).why == f"pid {far.pid}, which kept the replica, did not serve in time"


async def test_a_service_without_stored_settings_lasts_until_the_replica_serves(
    machine: FakeMachine, autojump_clock: MockClock
) -> None:
    """Nothing holds it between the replacement and the new member: its settings and its move would be lost, and a replica that
    hangs would never be ended."""
    async with machine.mpsd():
        _, far = await stopped(machine)
        machine.failover.change(1, ServiceSettings(until_done=True))
        assert (await ask(machine, far, sequence=7)).order is Order.SERVE
        await trio.sleep(1)
        assert machine.failover.settings(2).until_done
        assert move(machine, 2).state is MoveState.HANDING
        await trio.sleep(5)
        assert machine.ended == [far]
        await trio.sleep(60)
        assert 2 not in machine.coordinator.records, "no process is left, and nothing is stored"


async def test_the_vault_cannot_store_the_replacement(
    machine: FakeMachine, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.mpsd():
        active, far = await stopped(machine)
        machine.failover.ready(1, active)

        def full(*_: object) -> tuple[Arena, Arena]:
            raise NoRoom("the disk is full")

        monkeypatch.setattr(machine.vault, "replace", full)
        with pytest.raises(MpsdError, match="the disk is full"):
            await ask(machine, far, sequence=7)
        await trio.sleep(6)
        await stays(machine, "did not have the last barrier")
        assert machine.order(active) == "serve"


async def test_a_failure_of_the_gpu_during_the_rounds_ends_the_move_where_it_was_going(
    machine: FakeMachine, autojump_clock: MockClock
) -> None:
    async with machine.mpsd():
        active, far = await machine.serves("a"), keep(machine)
        await ask(machine, far)
        machine.failover.move(1, THERE, 60.0)
        machine.drained.add(HERE)
        machine.see_fault(active)
        assert (await ask(machine, far, has_gpu_failed=True)).order is Order.SERVE
        await machine.failover.join(2, far, 0, 0)
        machine.failover.serving(2, machine.vault.made[2].generation, far)
        assert (move(machine, 2).state, move(machine, 2).pause_ms) == (MoveState.DONE, None)
        assert not machine.topics("unmoved")
