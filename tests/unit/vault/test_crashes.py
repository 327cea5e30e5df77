"""mpsd dies, and the keeper dies, at every point: nothing half done is ever seen, and no descriptor stays behind."""

import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from mpsd_client import State, StateReader
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from mpsd.errors import KeeperFailed, MpsdError, StaleGeneration, Stopping
from mpsd.host import processes
from mpsd.keeper.link import KeeperLink
from mpsd.model.arena import GRANULE, Access, Arena
from mpsd.model.process import ProcessId
from mpsd.vault.lifecycle import Vault
from tests.descriptors import descriptors
from tests.unit.vault.machine import SPEC, Machine, at, committed, impatient_with_keepers, memory, opened, put, taken, until

Step = Callable[[Vault, Arena, ProcessId], Awaitable[object]]


class Killed(BaseException):
    """Stands for `kill -9`: nothing of mpsd's own catches it."""


async def put_two(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await put(vault, arena, process, 4, 5)


async def put_again(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await put(vault, arena, process, 2, text=b"again")


async def drop_fresh(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await vault.arenas.drop(arena.id, 1, process, [2 * GRANULE])


async def drop_committed(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await vault.arenas.drop(arena.id, 1, process, [0, GRANULE])


async def commit(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await vault.arenas.drop(arena.id, 1, process, [0])
    await vault.arenas.commit(arena.id, 1, process, memory(b"layout 2"))


async def commit_with_state(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await vault.arenas.drop(arena.id, 1, process, [0])
    with State.create({"step": "int64"}, generation=1) as state:
        state.publish(step=2)
        await vault.arenas.commit(arena.id, 1, process, memory(b"layout 2"), os.dup(state.fd))


async def seal(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await vault.arenas.seal(arena.id, 1, process)


async def close_and_remove(vault: Vault, arena: Arena, process: ProcessId) -> None:
    await vault.arenas.close(arena.id, process)
    await vault.arenas.remove(arena.id)


async def promote(vault: Vault, arena: Arena, process: ProcessId) -> None:
    [reader] = arena.readers
    vault.arenas.promote(arena.id, reader, process)


async def step_down(vault: Vault, arena: Arena, process: ProcessId) -> None:
    vault.arenas.step_down(arena.id, 1, process)


async def keep_state(vault: Vault, arena: Arena, process: ProcessId, step: int = 2) -> None:
    with State.create({"step": "int64"}, generation=arena.generation) as state:
        state.publish(step=step)
        await vault.arenas.keep_state(arena.id, arena.generation, process, os.dup(state.fd))


STEPS = (
    put_two, put_again, drop_fresh, drop_committed, commit, commit_with_state, seal, promote, step_down, keep_state,
    close_and_remove,
)  # fmt: skip
BEFORE = {0: b"0", 1: b"1"}
SEEN = {  # what an adopter may find after a death at any point of the step
    commit: [BEFORE, {1: b"1", 2: b"2"}],
    commit_with_state: [BEFORE, {1: b"1", 2: b"2"}],
}


async def prepared(vault: Vault, process: ProcessId) -> Arena:
    """Two that are committed, with a layout, and one that is not; and a forward state."""
    arena = await opened(vault, process)
    await put(vault, arena, process, 0, 1)
    arena = await vault.arenas.commit(arena.id, 1, process, memory(b"layout 1"))
    await put(vault, arena, process, 2)
    await keep_state(vault, arena, process, 1)
    return arena


async def die_in(machine: Machine, step: Step, process: ProcessId, deadly: int) -> bool:
    """Carry out a step, and die before the so-manieth thing asked of store or keeper; False: it was done before."""
    count = 0

    def cut(*_: object) -> None:
        nonlocal count
        count += 1
        if count == deadly:
            raise Killed

    async with machine.vault() as vault:
        arena = vault.arenas.find("model")
        exchange = KeeperLink.exchange

        async def deadly_exchange(self: KeeperLink, requests):  # type: ignore[no-untyped-def]
            cut()
            replies = await exchange(self, requests)
            cut()
            return replies

        vault.store.before_writing = cut
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KeeperLink, "exchange", deadly_exchange)
            await step(vault, arena, process)
        return False
    raise AssertionError


def was_killed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(was_killed(each) for each in error.exceptions)
    return isinstance(error, Killed)


def _marked(step: Step):  # type: ignore[no-untyped-def]
    """Everyday runs use three of them for all."""
    return pytest.param(step, id=step.__name__, marks=() if step in (put_two, commit, promote) else pytest.mark.slow)


@pytest.mark.parametrize("most", [4096, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [_marked(step) for step in STEPS])
async def test_a_death_at_any_point_of_a_step_leaves_all_of_it_or_nothing(machine, writer, other, step, most):
    """most: that one keeper holds.  With few the arena is in several, and the step may start another."""
    machine.small_keepers(most)
    deadly = 0
    is_cut = True
    while is_cut:
        deadly += 1
        async with machine.vault() as vault:
            for arena in vault.arenas.arenas():
                for process in (writer.process, other.process):
                    if process in (arena.writer, *arena.readers):
                        await vault.arenas.close(arena.id, process)
                await vault.arenas.remove(arena.id)
            arena = await prepared(vault, writer.process)
            if step is promote:
                await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        try:
            is_cut = await die_in(machine, step, writer.process, deadly)
        except BaseException as exc:
            if not was_killed(exc):
                raise
        async with machine.vault() as vault:
            await check_whole(vault, step, writer.process, other.process)
    assert deadly > 2


async def check_whole(vault: Vault, step: Step, writer: ProcessId, other: ProcessId) -> None:
    """Check that store, keeper and counters agree; an adopter sees one of two states."""
    arenas = vault.arenas.arenas()
    names = await vault.keeper.names()
    assert sorted(names) == sorted(name for entry in vault.catalog.by_id.values() for name in entry.names())
    assert vault.catalog.account.used_bytes[SPEC.gpu] == sum(each.used_bytes for each in arenas)
    assert vault.catalog.account.allocations == sum(entry.count for entry in vault.catalog.by_id.values())
    if not arenas:
        assert step is close_and_remove
        return
    [arena] = arenas
    if step is promote:
        assert (arena.generation, arena.writer, arena.readers) in [(1, writer, (other,)), (2, other, ())]
    if writer in (arena.writer, *arena.readers):
        await vault.arenas.close(arena.id, writer)
    await vault.arenas.open(arena.id, Access.READ, other, 0)
    state, found_memory = await state_step(vault, arena), await taken(vault, arena, other)
    assert state in ([1, 2] if step in (keep_state, commit_with_state) else [1])
    assert found_memory in SEEN.get(step, [BEFORE])
    assert step is not commit_with_state or (state == 2) == (found_memory != BEFORE), "the one without the other"
    found, layout = await vault.arenas.layout(arena.id, other)
    text = os.pread(layout, 100, 0)
    os.close(layout)
    assert text == (b"layout 2" if found.allocations and 0 not in await taken(vault, arena, other) else b"layout 1")


async def state_step(vault: Vault, arena: Arena) -> object:
    descriptor = await vault.arenas.state_descriptor(arena.id)
    with StateReader.open(descriptor) as reader:
        record = reader.read()
    os.close(descriptor)
    return None if record is None else record["step"]


# -- the keeper's own death ------------------------------------------------------------------------------------------------


async def test_the_keepers_death_takes_all_memory_and_nothing_else(machine, writer, other):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        empty = await opened(vault, other.process, replace(SPEC, name="empty"))
        os.kill(vault.keeper.pid, signal.SIGKILL)
        await until(lambda: bool(machine.topics("arena.lost")))
        [lost] = machine.topics("arena.lost")
        assert (lost["name"], lost["lost_bytes"]) == ("model", GRANULE)
        found = vault.arenas.find("model")
        assert (found.used_bytes, found.allocations, found.generation, found.writer) == (0, 0, 2, writer.process)
        with pytest.raises(StaleGeneration):
            await put(vault, arena, writer.process, 1)
        again = await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)
        await put(vault, again, writer.process, 0, text=b"filled again")
        await vault.arenas.commit(arena.id, again.generation, writer.process, None)
        assert await taken(vault, arena, writer.process) == {0: b"filled again"}
        assert (await put(vault, empty, other.process, 0)).generation == 1


async def test_a_sealed_arena_that_was_lost_can_be_filled_again(machine, writer):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await vault.arenas.seal(arena.id, 1, writer.process)
        os.kill(vault.keeper.pid, signal.SIGKILL)
        await until(lambda: not vault.arenas.find("model").is_sealed)
        assert (await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)).generation == 3


async def test_mpsd_and_the_keeper_die_together(machine, writer):
    async with machine.vault() as vault:
        await committed(vault, writer.process)
    machine.end_keepers()
    async with machine.vault() as vault:
        found = vault.arenas.find("model")
        assert (found.used_bytes, found.generation, found.writer) == (0, 2, writer.process)
        assert vault.keeper.pid == 0  # nothing is to be held


async def test_a_keeper_that_lost_one_descriptor_loses_its_arena_alone(machine, writer):
    async with machine.vault() as vault:
        await committed(vault, writer.process, places=(0, 1))
        await committed(vault, writer.process, replace(SPEC, name="whole"))
        await vault.keeper.drop(["m.000000000002"])
    async with machine.vault() as vault:
        assert [vault.arenas.find(name).used_bytes for name in ("model", "whole")] == [0, GRANULE]
        assert await vault.keeper.names() == ["m.000000000003"]


async def test_a_stopped_keeper_costs_an_answer_and_no_memory(machine, writer, monkeypatch):
    """Under a debugger, or while the machine sleeps: the memory it holds is not lost."""
    impatient_with_keepers(monkeypatch)
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        os.kill(vault.keeper.pid, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(KeeperFailed):
                await put(vault, arena, writer.process, 1)
        assert vault.arenas.find("model").used_bytes == GRANULE
        os.kill(vault.keeper.pid, signal.SIGCONT)
        await until(lambda: vault.keeper.state == "works")
        monkeypatch.setattr("mpsd.keeper.link.SECONDS", 10.0)
        await put(vault, arena, writer.process, 1, text=b"after")
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        assert await taken(vault, arena, writer.process) == {0: b"0", 1: b"after"}
        assert len(await vault.keeper.names()) == 2


@pytest.mark.slow
@pytest.mark.deadline(300)
@pytest.mark.parametrize(("seed", "most"), [(0, 4096), (1, 5)])
async def test_a_thousand_cycles_leave_no_descriptor_behind(machine, writer, other, seed, most):
    """mpsd or a keeper dies in the middle, or neither; the end of each cycle is the beginning of the next."""
    machine.small_keepers(most)
    chance = random.Random(seed)
    here = None
    for cycle in range(500):
        try:
            async with machine.vault() as vault:
                await one_cycle(vault, chance, writer.process, other.process)
        except BaseException as exc:
            if not was_killed(exc):
                raise
        if cycle == 10:
            here = descriptors() - machine.pidfds
    assert descriptors() - machine.pidfds <= here
    async with machine.vault() as vault:
        names = await vault.keeper.names()
        assert sorted(names) == sorted(name for entry in vault.catalog.by_id.values() for name in entry.names())


async def one_cycle(vault: Vault, chance: random.Random, writer: ProcessId, other: ProcessId) -> None:
    if not vault.arenas.arenas():
        await vault.arenas.create(SPEC, 0, 0, None)
    [arena] = vault.arenas.arenas()
    cuts = chance.randrange(40)

    def cut() -> None:
        nonlocal cuts
        cuts -= 1
        if cuts == 0:
            raise Killed

    vault.store.before_writing = cut
    for _ in range(8):
        try:
            arena = await vault.arenas.open(arena.id, Access.WRITE, chance.choice((writer, other)), 0)
            assert arena.writer is not None
            places = [chance.randrange(64)]
            await vault.arenas.put(arena.id, arena.generation, arena.writer, at(*places), [memory()])
            if chance.random() < 0.5:
                await vault.arenas.commit(arena.id, arena.generation, arena.writer, memory(b"%d" % cuts))
            await vault.arenas.drop(arena.id, arena.generation, arena.writer, [chance.randrange(64) * GRANULE])
            if chance.random() < 0.2:
                await keep_state(vault, arena, arena.writer, cuts)
            if chance.random() < 0.2:
                vault.arenas.promote(arena.id, arena.writer, None)
            if chance.random() < 0.3:
                await vault.arenas.close(arena.id, arena.writer)
            if vault.keeper.pids and chance.random() < 0.02:
                os.kill(chance.choice(vault.keeper.pids), signal.SIGKILL)
        except MpsdError:
            arena = vault.arenas.find("model")


async def test_a_new_keepers_life_does_not_end_with_the_old_ones(machine, writer):
    """The first caller finds it dead and starts another; the report of the death comes later."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
        async with vault.keeper._keepers[0]._lock:
            os.kill(vault.keeper.pid, signal.SIGKILL)
            os.waitid(os.P_PID, vault.keeper.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 it was killed
        while not machine.topics("arena.lost"):
            with suppress(MpsdError):
                await put(vault, arena, writer.process, 0)
        arena = await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)
        await put(vault, arena, writer.process, 1)
        await wait_all_tasks_blocked()
        assert vault.keeper.state == "works"
        assert len(await vault.keeper.names()) == 1
        assert len(machine.topics("arena.lost")) == 1


async def test_memory_is_given_back_when_a_stopped_keeper_goes_on(machine, writer, monkeypatch):
    impatient_with_keepers(monkeypatch)
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await vault.arenas.close(arena.id, writer.process)
        os.kill(vault.keeper.pid, signal.SIGSTOP)
        await vault.arenas.remove(arena.id)
        os.kill(vault.keeper.pid, signal.SIGCONT)
        await until(lambda: vault.keeper.state == "works" and not vault.keeper.held)
        monkeypatch.setattr("mpsd.keeper.link.SECONDS", 10.0)
        assert await vault.keeper.names() == []


async def test_once_it_has_ended_nothing_is_begun(machine, writer):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        await vault.end()
        for ask in (put(vault, arena, writer.process, 1), vault.arenas.create(SPEC, 0, 0, None)):
            with pytest.raises(Stopping):
                await ask
        with pytest.raises(Stopping):
            await vault.keeper.put([])
    async with machine.vault() as vault:
        assert vault.arenas.arenas() == []


async def test_a_keeper_whose_socket_is_gone_gives_its_memory_back(machine, writer):
    """A cleanup of /run: no mpsd will ever reach it again."""
    async with machine.vault() as vault:
        await committed(vault, writer.process)
        pid = vault.keeper.pid
    (machine.directory / "keeper").unlink()
    async with machine.vault() as vault:
        assert vault.arenas.find("model").used_bytes == 0
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 it was killed


async def test_a_later_process_with_the_keepers_pid_is_left_alone(machine, writer):
    async with machine.vault() as vault:
        vault.store.save_keeper(0, writer.process)
    async with machine.vault() as vault:
        await committed(vault, writer.process)
        assert vault.store.keepers()[0] != writer.process
    assert processes.is_alive(writer.process)
