"""Memory that is spread over several keepers: which one has it, and what one's death, silence or end costs."""

import os
import resource
import signal
import socket

import pytest
import trio
from msgspec.structs import replace
from structlog.testing import capture_logs

from mpsd.errors import KeeperFailed, NoRoom, UnusablePath
from mpsd.host import processes
from mpsd.host.descriptors import close_all
from mpsd.model.arena import GRANULE, Access, Arena
from mpsd.model.process import ProcessId
from mpsd.vault.lifecycle import Vault
from tests.descriptors import descriptors
from tests.unit.vault.machine import SPEC, Machine, at, committed, impatient_with_keepers, memory, opened, put, taken, until

MOST = 6  # that one keeper holds


@pytest.fixture
def small(machine: Machine) -> Machine:
    machine.small_keepers(MOST)
    return machine


def where(vault: Vault, name: str) -> list[int]:
    """The keepers that have something of this arena, by number."""
    names = vault.catalog.by_name[name].names()
    return [keeper.number for keeper in vault.keeper._keepers.values() if keeper.names.intersection(names)]


async def three(vault: Vault, process: ProcessId) -> list[Arena]:
    """The first is in keeper 0, the third in keeper 1, the second in both."""
    first = await committed(vault, process, replace(SPEC, name="first"), places=range(4))
    second = await committed(vault, process, replace(SPEC, name="second"), places=range(2))
    await put(vault, second, process, 2, 3)
    second = await vault.arenas.commit(second.id, second.generation, process, None)
    third = await committed(vault, process, replace(SPEC, name="third"), places=range(4))
    assert [where(vault, each.name) for each in (first, second, third)] == [[0], [0, 1], [1]]
    return [first, second, third]


async def check_whole(vault: Vault) -> None:
    """Check that every stored allocation is held by a keeper, and no others."""
    names = [name for entry in vault.catalog.by_id.values() for name in entry.names()]
    assert sorted(await vault.keeper.names()) == sorted(names)
    assert vault.keeper.held == len(names)


def have_ended(pids: list[int]) -> bool:
    return all(processes.state(pid) in "XZ" for pid in pids)


def states(vault: Vault) -> dict[str, tuple[int, int]]:
    return {arena.name: (arena.allocations, arena.generation) for arena in vault.arenas.arenas()}


# -- where it goes ---------------------------------------------------------------------------------------------------------


async def test_a_keeper_is_started_when_those_before_are_full(small, writer):
    async with small.vault() as vault:
        assert vault.keeper.pids == []
        arena = await opened(vault, writer.process)
        for start, keepers in ((0, 1), (3, 1), (6, 2), (9, 2), (12, 3)):
            await put(vault, arena, writer.process, *range(start, start + 3))
            assert len(vault.keeper.pids) == keepers
        view = vault.view()
        assert (view.state, len(set(view.pids)), view.held) == ("works", 3, 15)
        assert sorted(path.name for path in small.directory.glob("keeper*")) == ["keeper", "keeper-1", "keeper-2"]
        await vault.arenas.commit(arena.id, 1, writer.process, None)
        assert await taken(vault, arena, writer.process) == {place: b"%d" % place for place in range(15)}
        await check_whole(vault)


async def test_an_arena_stays_where_it_is_as_long_as_there_is_room(small, writer):
    """Its layout too.  A new one goes where most room is."""
    async with small.vault() as vault:
        await committed(vault, writer.process, replace(SPEC, name="full"), places=range(6))
        arena = await committed(vault, writer.process, places=range(4))
        await vault.arenas.close(vault.arenas.find("full").id, writer.process)
        await vault.arenas.remove(vault.arenas.find("full").id)
        await put(vault, arena, writer.process, 4)
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"))
        assert where(vault, "model") == [1]
        await committed(vault, writer.process, replace(SPEC, name="new"))
        assert where(vault, "new") == [0]


async def test_a_put_is_not_torn_apart(small, writer):
    """It goes to the next keeper where the rest of one is too small; one that none could hold is refused as a whole."""
    async with small.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, *range(4))
        await put(vault, arena, writer.process, *range(4, 7))
        assert [len(keeper.names) for keeper in vault.keeper._keepers.values()] == [4, 3]
        with pytest.raises(NoRoom):
            await put(vault, arena, writer.process, *range(8, 8 + MOST + 1))
        await check_whole(vault)


async def test_together_they_hold_as_much_as_is_configured(small, writer):
    small.most = 2 * MOST
    async with small.vault() as vault:
        arena = await opened(vault, writer.process)
        for place in range(2 * MOST):
            await put(vault, arena, writer.process, place)
        with pytest.raises(NoRoom, match=r"keepers, 2, can hold 12 descriptors, and hold 12"):
            await put(vault, arena, writer.process, 2 * MOST)
        await vault.arenas.drop(arena.id, 1, writer.process, [0])
        await put(vault, arena, writer.process, 2 * MOST)
        await check_whole(vault)


async def test_puts_at_once_start_no_more_than_are_needed(small, writer):
    async with small.vault() as vault:
        arenas = [await opened(vault, writer.process, replace(SPEC, name=f"a{number}")) for number in range(6)]
        async with trio.open_nursery() as nursery:
            for arena in arenas:
                nursery.start_soon(put, vault, arena, writer.process, 0, 1)
        assert [len(keeper.names) for keeper in vault.keeper._keepers.values()] == [6, 6]
        await check_whole(vault)


async def test_what_even_many_could_not_hold_is_said(small, writer, monkeypatch):
    monkeypatch.setattr("mpsd.keeper.memory_keepers.MOST_KEEPERS", 2)
    with capture_logs() as logs:
        async with small.vault() as vault:
            await committed(vault, writer.process)
    [said] = [each for each in logs if each["event"] == "vault.few_descriptors"]
    assert (said["wanted"], said["found"]) == (small.most, 2 * MOST)


# -- one dies --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "left"), [(0, "third"), (1, "first")])
async def test_a_keepers_death_costs_the_arenas_that_had_something_in_it(small, writer, number, left):
    """And what the others had of these is given back."""
    async with small.vault() as vault:
        await three(vault, writer.process)
        os.kill(vault.keeper.pids[number], signal.SIGKILL)
        await until(lambda: len(small.topics("arena.lost")) == 2)
        expected = {"first": (0, 2), "second": (0, 2), "third": (0, 2), left: (4, 1)}
        assert states(vault) == expected
        await until(lambda: vault.keeper.held == 4)
        await check_whole(vault)
        assert len(await taken(vault, vault.arenas.find(left), writer.process)) == 4
        again = await vault.arenas.open(vault.arenas.find("second").id, Access.WRITE, writer.process, 0)
        await put(vault, again, writer.process, *range(5))
        assert len(vault.keeper.pids) == 2
        await check_whole(vault)
    async with small.vault() as vault:
        assert states(vault) == expected  # what was put since is not committed
        await check_whole(vault)


async def test_what_is_lost_while_it_is_taken_is_given_to_nobody(small, writer, monkeypatch):
    """Half of a model is useless, also during a transfer; and an arena that is taken in pages is recognised as another one."""
    async with small.vault() as vault:
        second = (await three(vault, writer.process))[1]
        first_page = await vault.arenas.take(second.id, writer.process, None, 1)
        [*_, last] = vault.keeper._keepers.values()
        get = last.get

        async def and_another_dies(names: list[str]) -> list[int]:
            found = await get(names)
            os.kill(vault.keeper.pids[0], signal.SIGKILL)
            await until(lambda: len(small.topics("arena.lost")) == 2)
            return found

        monkeypatch.setattr(last, "get", and_another_dies)
        before = descriptors()
        with pytest.raises(KeeperFailed, match="was lost"):
            await vault.arenas.take(second.id, writer.process, None, 128)
        await until(lambda: descriptors() <= before)  # closed by a thread
        next_page = await vault.arenas.take(second.id, writer.process, first_page.allocations[-1].offset, 128)
        assert next_page.allocations == ()
        assert next_page.arena.commit > first_page.arena.commit
        close_all(first_page.fds)


async def test_one_dies_while_there_is_no_mpsd(small, writer):
    async with small.vault() as vault:
        await three(vault, writer.process)
        pids = vault.keeper.pids
    os.kill(pids[0], signal.SIGKILL)
    async with small.vault() as vault:
        assert states(vault) == {"first": (0, 2), "second": (0, 2), "third": (4, 1)}
        assert vault.keeper.pids == pids[1:]
        await check_whole(vault)


async def test_a_socket_that_is_gone_costs_what_its_keeper_had(small, writer):
    async with small.vault() as vault:
        await three(vault, writer.process)
        pids = vault.keeper.pids
    (small.directory / "keeper-1").unlink()
    async with small.vault() as vault:
        assert states(vault) == {"first": (4, 1), "second": (0, 2), "third": (0, 2)}
        await until(lambda: have_ended(pids[1:]))
        await check_whole(vault)


async def test_what_is_lost_and_cannot_be_stored_is_lost_later(small, writer, monkeypatch):
    monkeypatch.setattr("mpsd.keeper.memory_keepers._AGAIN_SECONDS", 0.01)
    async with small.vault() as vault:
        await three(vault, writer.process)
        refusals = [UnusablePath("no space"), UnusablePath("no space")]

        def refuse() -> None:
            if refusals:
                raise refusals.pop()

        vault.store.before_writing = refuse
        os.kill(vault.keeper.pids[0], signal.SIGKILL)
        await until(lambda: len(small.topics("arena.lost")) == 2)
        assert refusals == []
        await until(lambda: vault.keeper.held == 4)


# -- one is silent ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    impatient_with_keepers(monkeypatch)
    return monkeypatch


async def test_a_silent_keeper_costs_answers_about_what_it_has_and_nothing_else(small, writer, impatient):
    async with small.vault() as vault:
        first, second, third = await three(vault, writer.process)
        os.kill(vault.keeper.pids[0], signal.SIGSTOP)
        for arena in (first, second):
            with pytest.raises(KeeperFailed):
                await taken(vault, arena, writer.process)
        impatient.setattr("mpsd.keeper.link.SECONDS", 10.0)  # no request waits for it any more
        assert vault.keeper.state == "1 of 2 do not answer"
        assert len(await taken(vault, third, writer.process)) == 4
        await put(vault, first, writer.process, 8, 9)  # elsewhere
        await vault.arenas.drop(first.id, 1, writer.process, [0])
        await vault.arenas.commit(first.id, 1, writer.process, None)  # what is dropped goes later
        os.kill(vault.keeper.pids[0], signal.SIGCONT)
        await until(lambda: vault.keeper.state == "works" and vault.keeper.held == 13)
        await check_whole(vault)
        assert set(await taken(vault, first, writer.process)) == {1, 2, 3, 8, 9}
        assert small.topics("arena.lost") == []


async def test_one_that_is_silent_from_the_start_loses_nothing(small, writer, impatient):
    """mpsd cannot know its contents; when it continues, unused ones are dropped."""
    async with small.vault() as vault:
        first, _, third = await three(vault, writer.process)
        pids = vault.keeper.pids
    os.kill(pids[0], signal.SIGSTOP)
    async with small.vault() as vault:
        assert states(vault) == {"first": (4, 1), "second": (4, 1), "third": (4, 1)}
        assert set(vault.keeper.pids) == set(pids)
        impatient.setattr("mpsd.keeper.link.SECONDS", 10.0)
        assert len(await taken(vault, third, writer.process)) == 4
        with pytest.raises(KeeperFailed):
            await taken(vault, first, writer.process)
        await vault.arenas.close(first.id, writer.process)
        await vault.arenas.remove(first.id)
        os.kill(pids[0], signal.SIGCONT)
        await until(lambda: vault.keeper.state == "works" and vault.keeper.held == 8)
        await check_whole(vault)
        assert states(vault) == {"second": (4, 1), "third": (4, 1)}


async def test_one_that_is_silent_from_the_start_and_dies(small, writer, impatient):
    async with small.vault() as vault:
        await three(vault, writer.process)
        pids = vault.keeper.pids
    os.kill(pids[0], signal.SIGSTOP)
    async with small.vault() as vault:
        assert small.topics("arena.lost") == []
        os.kill(pids[0], signal.SIGKILL)
        await until(lambda: vault.keeper.held == 4)
        assert states(vault) == {"first": (0, 2), "second": (0, 2), "third": (4, 1)}


async def test_what_is_put_into_one_that_falls_silent_is_not_put_twice(small, writer, impatient):
    """The keeper may have it or not; when it continues, mpsd drops it."""
    async with small.vault() as vault:
        arena = await opened(vault, writer.process)
        await put(vault, arena, writer.process, 0)
        os.kill(vault.keeper.pid, signal.SIGSTOP)
        with pytest.raises(KeeperFailed):
            await put(vault, arena, writer.process, 1)
        os.kill(vault.keeper.pid, signal.SIGCONT)
        await until(lambda: vault.keeper.state == "works" and vault.keeper.held == 1)
        impatient.setattr("mpsd.keeper.link.SECONDS", 10.0)
        await check_whole(vault)


async def test_one_that_hangs_up_is_reached_again(small, writer):
    """As it does when mpsd was stopped for a while, and a reply was not read."""
    async with small.vault() as vault:
        arena = await committed(vault, writer.process)
        keeper = vault.keeper._keepers[0]
        assert keeper._link._socket is not None
        keeper._link._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(KeeperFailed):
            await taken(vault, arena, writer.process)
        await until(lambda: vault.keeper.state == "works")
        assert await taken(vault, arena, writer.process) == {0: b"0"}
        assert small.topics("arena.lost") == []


async def test_one_that_hangs_up_while_no_descriptor_is_free_is_reached_later(small, writer, monkeypatch):
    monkeypatch.setattr("mpsd.keeper.memory_keeper._AGAIN_SECONDS", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with small.vault() as vault:
        arena, keeper = await committed(vault, writer.process), vault.keeper._keepers[0]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            keeper._link._socket.shutdown(socket.SHUT_RDWR)
            with pytest.raises(KeeperFailed):
                await taken(vault, arena, writer.process)
            await until(lambda: keeper.is_silent)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: vault.keeper.state == "works")
        assert await taken(vault, arena, writer.process) == {0: b"0"}


# -- mpsd ends -------------------------------------------------------------------------------------------------------------


async def test_kill_9_of_mpsd_costs_nothing(small, writer):
    async with small.vault() as vault:
        arenas = await three(vault, writer.process)
        await put(vault, arenas[2], writer.process, 8)
        pids = vault.keeper.pids
    async with small.vault() as vault:
        assert vault.keeper.pids == pids
        assert states(vault) == {"first": (4, 1), "second": (4, 1), "third": (4, 1)}
        await check_whole(vault)
        for arena in arenas:
            assert await taken(vault, arena, writer.process) == {place: b"%d" % place for place in range(4)}
        await put(vault, arenas[2], writer.process, 9)
        assert where(vault, "third") == [1, 2]


async def test_quit_ends_them_all(small, writer):
    async with small.vault() as vault:
        await three(vault, writer.process)
        pids = vault.keeper.pids
        await vault.end()
        await until(lambda: have_ended(pids))
    assert list(small.directory.glob("keeper*")) == []
    async with small.vault() as vault:
        assert vault.arenas.arenas() == []


async def test_a_quit_waits_for_none_that_is_silent(small, writer, impatient):
    """It is killed: nothing else gives its memory back."""
    async with small.vault() as vault:
        first, *_ = await three(vault, writer.process)
        pids = vault.keeper.pids
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(KeeperFailed):
            await taken(vault, first, writer.process)
        impatient.setattr("mpsd.keeper.link.SECONDS", 10.0)
        await vault.end()
        await until(lambda: have_ended(pids))
    assert list(small.directory.glob("keeper*")) == []


async def test_a_quit_before_they_were_reached_ends_them_all(small, writer):
    async with small.vault() as vault:
        await three(vault, writer.process)
        pids = vault.keeper.pids
    vault = small.make()
    try:
        await vault.end()
        await until(lambda: have_ended(pids))
        assert list(small.directory.glob("keeper*")) == []
    finally:
        vault.store.close()


async def test_an_arena_of_many_keepers_goes_from_all_of_them(small, writer):
    async with small.vault() as vault:
        arena = await opened(vault, writer.process)
        for start in range(0, 20, 5):
            await vault.arenas.put(arena.id, 1, writer.process, at(*range(start, start + 5)), [memory() for _ in range(5)])
        await vault.arenas.commit(arena.id, 1, writer.process, memory(b"layout"))
        assert vault.arenas.find("model").used_bytes == 20 * GRANULE
        await vault.arenas.close(arena.id, writer.process)
        await vault.arenas.remove(arena.id)
        assert await vault.keeper.names() == []
