"""The forward state that is kept with an arena: its owner, its life, and the refusals."""

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio
from mpsd_client import State, StateReader
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from mpsd.errors import BadRequest, KeeperFailed, MpsdError, NoRoom, NotAllowed, StaleGeneration
from mpsd.model.arena import Access, Arena, KeptState
from mpsd.model.process import ProcessId
from mpsd.vault.descriptor_checks import check_state, generation_of_state
from mpsd.vault.lifecycle import Vault
from mpsd.vault.rules.settings import VaultSettings
from mpsd.vault.store import VaultStore
from mpsd.wire.forward_state import HEAD, MAGIC, file_bytes
from tests.descriptors import descriptors
from tests.unit.vault.machine import SPEC, a_process, allocate_beyond, committed, memory, opened, put, taken, until

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def state() -> Iterator[State]:
    with State.create({"step": "uint64"}, generation=1) as made:
        yield made


async def keep(vault: Vault, arena: Arena, process: ProcessId, state: State) -> Arena:
    generation = state.published[0]
    return await vault.arenas.keep_state(arena.id, generation, process, os.dup(state.fd))


async def step_of(vault: Vault, arena: Arena, process: ProcessId) -> tuple[int, object] | None:
    """The serial and the last step of the state that this process is given."""
    found = await vault.arenas.state(arena.id, process)
    if found is None:
        return None
    kept, descriptor = found
    with StateReader.open(descriptor, generation=kept.generation) as reader:
        record = reader.read()
    os.close(descriptor)
    return kept.serial, None if record is None else record["step"]


# -- its life ------------------------------------------------------------------------------------------------


async def test_a_standby_reads_what_the_writer_published_last(machine, writer, other, state):
    """Also after the end of its writer, and after a restart of mpsd."""
    async with machine.vault() as vault:
        told = []
        vault.arenas.changed.subscribe(lambda what, arena: what == "state" and told.append(arena.state_serial))
        arena = await opened(vault, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        assert await step_of(vault, arena, other.process) is None
        assert await vault.arenas.state_descriptor(arena.id) == -1
        kept = await keep(vault, arena, writer.process, state)
        assert told == [kept.state_serial] == [1]
        state.publish(step=7)
        assert await step_of(vault, arena, other.process) == (1, 7)
        state.publish(step=8)
        writer.kill()
        await until(lambda: vault.arenas.find("model").writer is None)
    state.close()
    async with machine.vault() as vault:
        assert vault.arenas.find("model").state_serial == 1
        assert await step_of(vault, arena, other.process) == (1, 8)
        own = await vault.arenas.state_descriptor(arena.id)
        assert os.fstat(own).st_size == file_bytes(8)
        os.close(own)


async def test_promotion_leaves_it_until_the_new_writer_keeps_its_own(machine, writer, other, state):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        await keep(vault, arena, writer.process, state)
        state.publish(step=7)
        vault.arenas.promote(arena.id, other.process, writer.process)
        found = await vault.arenas.state(arena.id, other.process)
        assert found is not None
        assert found[0] == KeptState(1, 1, file_bytes(8))
        os.close(found[1])
        with pytest.raises(StaleGeneration):
            await keep(vault, arena, writer.process, state)
        with State.create({"step": "uint64"}, generation=2) as own:
            own.publish(step=8)
            await keep(vault, arena, other.process, own)
        assert await step_of(vault, arena, other.process) == (2, 8)
        await vault.reclaimer.settled(arena)
        assert await vault.keeper.names() == ["s.000000000002"]


async def test_it_goes_with_its_arena(machine, writer, state):
    async with machine.vault() as vault:
        arena = await committed(vault, writer.process)
        before = descriptors()
        await keep(vault, arena, writer.process, state)
        assert (vault.catalog.account.allocations, vault.view().held) == (2, 2)
        await vault.arenas.close(arena.id, writer.process)
        await vault.arenas.remove(arena.id)
        assert (vault.catalog.account.allocations, await vault.keeper.names()) == (0, [])
        await until(lambda: descriptors() == before - 1)  # the writer's pidfd
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        assert (await keep(vault, arena, writer.process, state)).state_serial > 2  # serials of states are never given twice


async def test_it_is_lost_with_its_keeper(machine, writer, state):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await keep(vault, arena, writer.process, state)
        [pid] = {process.pid for process in vault.store.keepers().values()}
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bool(machine.topics("arena.lost")))
        found = vault.arenas.find("model")
        assert (found.generation, found.state_serial, vault.catalog.account.allocations) == (2, 0, 0)
        with pytest.raises(StaleGeneration):
            await keep(vault, arena, writer.process, state)
        with State.create({"step": "uint64"}, generation=2) as again:
            await keep(vault, arena, writer.process, again)
        assert await step_of(vault, arena, writer.process) == (2, None)


async def test_what_a_keeper_lost_is_given_again_in_one_step(machine, writer, other, state):
    """The memory, its layout and the state of the term, which its writer made in an earlier generation; until then no process
    finds any of them."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        await put(vault, arena, writer.process, 0)
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"), os.dup(state.fd))
        state.publish(step=7)
        assert await step_of(vault, arena, other.process) == (vault.arenas.find("model").state_serial, 7)
        os.kill(vault.view().pids[0], signal.SIGKILL)
        await until(lambda: bool(machine.topics("arena.lost")))
        lost = vault.arenas.find("model")
        assert (lost.generation, lost.allocations, lost.layout_hash, lost.state_serial) == (2, 0, "", 0)
        await put(vault, lost, writer.process, 0)
        assert await step_of(vault, lost, other.process) is None
        assert await taken(vault, lost, other.process) == {}
        again = await vault.arenas.commit(arena.id, 2, writer.process, memory(b"layout"), os.dup(state.fd))
        state.publish(step=8)
        assert await step_of(vault, again, other.process) == (again.state_serial, 8)
        assert await taken(vault, again, other.process) == {0: b"0"}
        assert (again.state_generation, again.generation) == (2, 2), "mpsd looks at it for signs of life"
        await vault.reclaimer.settled(arena)
        assert len(await vault.keeper.names()) == vault.catalog.account.allocations + 1 == 3  # the layout counts not


async def test_a_comparison_during_a_commit_costs_nothing(machine, writer, state, monkeypatch):
    """As when another keeper dies, or is reached again, while a commit gives its layout and its state."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
        give = vault.keeper.put

        async def give_after_a_comparison(items, beside=None):
            if any(item.name.startswith("l.") for item in items):
                vault.keeper._compare()
                await wait_all_tasks_blocked()
            await give(items, beside)

        monkeypatch.setattr(vault.keeper, "put", give_after_a_comparison)
        state.publish(step=7)
        layout, given = memory(b"layout"), os.dup(state.fd)
        await vault.arenas.commit(arena.id, arena.generation, writer.process, layout, given)
        assert await step_of(vault, arena, writer.process) == (2, 7)
        vault.keeper._compare()
        assert vault.arenas.find("model").allocations == 1, "all of the arena was lost with its state"
        await vault.reclaimer.settled(arena)
        names = [name for entry in vault.catalog.by_id.values() for name in entry.names()]
        assert sorted(await vault.keeper.names()) == sorted(names)


@pytest.mark.parametrize("generation", [1, 3])
async def test_a_commit_that_is_refused_keeps_no_state(machine, writer, generation):
    """Of a generation that is yet to come; or since the commit is that of one that is over."""
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await vault.arenas.close(arena.id, writer.process)
        await vault.arenas.open(arena.id, Access.WRITE, writer.process, 0)
        with State.create({"step": "uint64"}, generation=generation) as made:
            with pytest.raises(BadRequest if generation == 3 else StaleGeneration):
                await vault.arenas.commit(arena.id, min(generation, 2), writer.process, None, os.dup(made.fd))
        assert (vault.catalog.account.allocations, await vault.keeper.names()) == (0, [])


# -- who may, and how many ---------------------------------------------------------------------------------------------


async def test_only_the_writer_keeps_one_and_only_who_holds_the_arena_gets_it(machine, writer, other, state):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await vault.arenas.open(arena.id, Access.READ, other.process, 0)
        await keep(vault, arena, writer.process, state)
        await wait_all_tasks_blocked()  # its keeper is watched by a descriptor from now on
        before = descriptors()
        with pytest.raises(StaleGeneration):
            await keep(vault, arena, other.process, state)
        with a_process() as third, pytest.raises(NotAllowed, match="not open"):
            await vault.arenas.state(arena.id, third.process)
        assert descriptors() == before


async def test_it_counts_as_a_descriptor(machine, writer, state):
    machine.settings = VaultSettings(max_allocations=1)
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        for _ in range(3):  # each in the place of the one before
            await keep(vault, arena, writer.process, state)
        with pytest.raises(NoRoom, match=r"vault\.max_allocations"):
            await put(vault, arena, writer.process, 0)
        await vault.reclaimer.settled(arena)
        assert (await vault.keeper.names(), vault.catalog.account.allocations) == (["s.000000000003"], 1)
        second = await opened(vault, writer.process, replace(SPEC, name="second"))
        with pytest.raises(NoRoom, match=r"vault\.max_allocations"):
            await keep(vault, second, writer.process, state)


async def test_what_the_keeper_refused_is_not_counted(machine, writer, state, monkeypatch):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await keep(vault, arena, writer.process, state)

        async def fail(*_: object) -> None:
            raise KeeperFailed("it does not answer")

        monkeypatch.setattr(vault.keeper, "put", fail)
        with pytest.raises(KeeperFailed):
            await keep(vault, arena, writer.process, state)
        assert (vault.arenas.find("model").state_serial, vault.catalog.account.allocations) == (1, 1)
        assert await step_of(vault, arena, writer.process) == (1, None)


# -- invalid states ------------------------------------------------------------------------------------------------------


def made(
    *, flags: int = 0, seals: int = SEALS, size: int = file_bytes(8), magic: int = MAGIC, generation: int = 1, beyond: int = 0
) -> int:
    """A state's file; beyond: the bytes of memory behind its end."""
    descriptor = os.memfd_create("state", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    if beyond:
        allocate_beyond(descriptor, beyond)
    if not flags:
        os.pwrite(descriptor, HEAD.pack(1, 0, magic, generation, 0, 8, 0), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def huge() -> int:
    try:
        return made(flags=os.MFD_HUGETLB, size=2 << 20)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOMEM, errno.EPERM, errno.ENODEV):
            raise
        pytest.skip(f"no huge pages here: {exc}")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: memory(seals=0), "is sealed"),
        (lambda: os.open("/dev/zero", os.O_RDONLY), "comes in a memory file"),
        (lambda: made(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), "is sealed"),
        (lambda: made(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL), "is sealed"),
        (lambda: made(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW), "its seals stay"),
        (huge, "huge pages"),
        (lambda: made(magic=1), "found: 0x1"),
        (lambda: made(generation=2), "generation 1 is wanted; found: 2"),
        (lambda: made(size=file_bytes(8) + 1), f"has {file_bytes(8) + 1} bytes, and its head gives {file_bytes(8)}"),
        (lambda: made(size=file_bytes(8) - 64), "has"),
        (lambda: made(beyond=1 << 28), "bytes of memory"),
    ],
)
def test_what_its_readers_could_not_use_is_refused(make: Callable[[], int], why: str) -> None:
    descriptor = make()
    try:
        with pytest.raises(BadRequest, match=why):
            check_state(descriptor, 1)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("made_in", "given_in", "refusal"),
    [(2, 1, "generation 1 is wanted; found: 2"), (1, 2, "is not the writer of generation 2")],
)
async def test_a_refused_one_is_closed(machine, writer, made_in, given_in, refusal):
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        await wait_all_tasks_blocked()  # its end is waited for
        before = descriptors()
        with pytest.raises(MpsdError, match=refusal):
            await vault.arenas.keep_state(arena.id, given_in, writer.process, made(generation=made_in))
        assert descriptors() == before


async def test_the_loop_goes_on_while_a_state_is_read(machine, writer, state, monkeypatch):
    """Its owner can have had its pages written to swap: mpsd served no process until the disk had brought them back."""
    in_swap, come = [], threading.Event()

    def once_it_has_come(read: Callable[..., int], *args: object) -> int:
        in_swap.append(read.__name__)
        assert come.wait(10), "the loop waits too"
        return read(*args)

    for read in (check_state, generation_of_state):
        monkeypatch.setattr(f"mpsd.vault.allocations.{read.__name__}", partial(once_it_has_come, read))
    async with machine.vault() as vault:
        arena = await opened(vault, writer.process)
        for way in (partial(keep, vault, arena, writer.process, state), partial(step_of, vault, arena, writer.process)):
            in_swap.clear()
            come.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(way)
                try:
                    await until(lambda: in_swap)
                finally:
                    come.set()


def test_a_pid_namespace_is_known_until_the_next_boot(tmp_path):
    """Then another container may have its inode."""
    path = tmp_path / "vault.db"
    store = VaultStore(path, "this boot")
    arena = Arena(0, "of-a-container", 0, 0, 0o600, "GPU", 1 << 45, 1 << 31, 1 << 30, 1e9, pid_namespace=4026532000)
    store.add(arena)
    store.add(replace(arena, name="of-the-host", pid_namespace=None, is_of_owner=True))
    store.close()
    for boot, expected in (("this boot", [4026532000, None]), ("the next", [0, None])):
        store = VaultStore(path, boot)
        assert [row.arena.pid_namespace for row in store.arenas()] == expected
        assert [row.arena.is_of_owner for row in store.arenas()] == [False, True]
        store.close()
