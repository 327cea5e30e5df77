"""Future members are kept apart from current ones."""


import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import BadRequest, NotAllowed, TooMany
from mpsd.services import enlistment
from mpsd.services.enlistment import Enlistment, Place
from tests.unit.services.fake_machine import OWNER


async def test_those_of_one_service_are_kept_apart(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        placed, fresh, other, stranger = (machine.process(domain) for domain in ("b", "", "c", ""))
        plans = (placed, "llm", OWNER), (fresh, "llm", OWNER), (other, "dit", OWNER), (stranger, "llm", 2000)
        for process, name, uid in plans:
            assert await machine.failover.enlist(name, uid, process, uid) == {}
        assert machine.enlisted.avoid(fresh) == {"a", "b"}
        assert machine.enlisted.avoid(placed) == {"a"}
        assert machine.enlisted.avoid(other) == set()
        assert machine.enlisted.avoid(stranger) == set()
        assert machine.enlisted.avoid(None) == machine.enlisted.avoid(machine.process("")) == set()


async def test_who_has_ended_is_in_nobodys_way(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first, second = machine.process("a"), machine.process("")
        await machine.failover.enlist("llm", OWNER, first, OWNER)
        await machine.failover.enlist("llm", OWNER, second, OWNER)
        assert machine.enlisted.avoid(second) == {"a"}
        await machine.die(first)
        assert machine.enlisted.avoid(second) == set()
        with pytest.raises(BadRequest):
            await machine.failover.enlist("llm", OWNER, first, OWNER)


async def test_without_root_each_is_told_where_to_go(machine, autojump_clock: MockClock):
    free = ["a", "b", "c"]

    async def find_place(avoid: frozenset[str]) -> Place:
        domain = next(each for each in free if each not in avoid)
        return Place(domain, {"CUDA_MPS_PIPE_DIRECTORY": f"/{domain}"})

    machine.find_place = find_place
    async with machine.mpsd():
        for domain in free:
            told = await machine.failover.enlist("llm", OWNER, machine.process(""), OWNER)
            assert told == {"CUDA_MPS_PIPE_DIRECTORY": f"/{domain}"}


async def test_without_root_only_its_own_users_processes_are_placed(machine, autojump_clock: MockClock):
    async def find_place(avoid: frozenset[str]) -> Place:
        return Place("a", {})

    async with machine.mpsd():
        enlisted = Enlistment(machine.coordinator, machine.coordinator.store, find_place, placed_uids={OWNER})
        stranger = machine.process("")
        with pytest.raises(NotAllowed, match="no processes of user 2000"):
            await enlisted.enlist("llm", OWNER, stranger, 2000)
        assert not machine.registry.plans
        assert await enlisted.enlist("llm", OWNER, stranger, OWNER) == {}


async def test_who_ends_while_a_place_is_found_is_forgotten(machine, autojump_clock: MockClock):
    first = machine.process("")

    async def find_place(avoid: frozenset[str]) -> Place:
        await machine.die(first)
        return Place("a", {})

    machine.find_place = find_place
    async with machine.mpsd():
        await machine.failover.enlist("llm", OWNER, first, OWNER)
        second = machine.process("")
        await machine.failover.enlist("llm", OWNER, second, OWNER)
        assert machine.enlisted.avoid(second) == set()


async def test_they_are_counted(machine, autojump_clock: MockClock, monkeypatch):
    monkeypatch.setattr(enlistment, "MOST_OF_USER", 2)
    monkeypatch.setattr(enlistment, "MOST", 4)
    async with machine.mpsd():

        async def enlist(uid: int) -> None:
            process = machine.process("")
            await machine.failover.enlist("llm", OWNER, process, uid)
            await machine.failover.enlist("llm", OWNER, process, uid)  # a repeated call changes nothing

        await enlist(100_001)
        await enlist(100_002)
        with pytest.raises(TooMany, match="of user 100000"):  # the same person
            await enlist(100_003)
        await enlist(0)
        await enlist(0)
        for uid in (0, 2000):
            with pytest.raises(TooMany, match="4 processes"):
                await enlist(uid)


async def test_the_next_mpsd_keeps_them_apart_too(machine, autojump_clock: MockClock):
    """One that is placed by another mpsd than it enlisted with enlists no more: its CUDA has begun."""
    placed, fresh, ended = machine.process("a"), machine.process(""), machine.process("b")
    async with machine.mpsd():
        for process in (placed, fresh, ended):
            await machine.failover.enlist("llm", OWNER, process, OWNER)
    await machine.die(ended)
    async with machine.mpsd():
        assert machine.enlisted.avoid(fresh) == {"a"}
        await machine.die(placed)
        assert machine.enlisted.avoid(fresh) == set()
    async with machine.mpsd():
        assert set(machine.registry.plans) == {fresh}


async def test_where_each_was_sent_is_known_to_the_next_mpsd(machine, autojump_clock: MockClock):
    async def find_place(avoid: frozenset[str]) -> Place:
        return Place(min({"a", "b", "c"} - avoid), {})

    machine.find_place = find_place
    first, second = machine.process(""), machine.process("")
    async with machine.mpsd():
        await machine.failover.enlist("llm", OWNER, first, OWNER)
    async with machine.mpsd():
        await machine.failover.enlist("llm", OWNER, second, OWNER)
        assert (machine.enlisted.avoid(second), machine.enlisted.avoid(first)) == ({"a"}, {"b"})


async def test_one_owners_services_have_so_many_members_together(machine, autojump_clock, monkeypatch):
    """One process can join all of them.  A member can ask again, and another owner has room."""
    monkeypatch.setattr("mpsd.services.requests.MOST_OF_OWNER", 2)
    more, others = machine.vault.create("more"), machine.vault.create("others")
    machine.vault.made[others.id] = replace(others, owner_uid=OWNER + 1)
    async with machine.mpsd():
        first, second = await machine.member("a"), await machine.member("b")
        for arena in (more, others):
            machine.vault.open(first, arena.id)
        with pytest.raises(TooMany, match=f"user {OWNER} have 2 members"):
            await machine.failover.join(more.id, first, 0, 0.0)
        assert more.id not in machine.coordinator.records
        await machine.failover.join(1, first, 0, 0.0)
        await machine.failover.join(others.id, first, 0, 0.0)
        machine.failover.leave(1, second)
        await machine.failover.join(more.id, first, 0, 0.0)


async def test_root_of_a_container_has_the_members_of_one_user(machine, autojump_clock, monkeypatch):
    """Its arenas have the quotas of one user as well; root itself has no bound."""
    monkeypatch.setattr("mpsd.services.requests.MOST_OF_OWNER", 1)
    roots, one, two = (machine.vault.create(name) for name in ("roots", "one", "two"))
    for arena, made_in in ((roots, None), (one, 7), (two, 7)):
        machine.vault.made[arena.id] = replace(arena, owner_uid=0, pid_namespace=made_in)
    async with machine.mpsd():
        process = machine.process("a")
        for arena in (roots, one, two):
            machine.vault.open(process, arena.id)
        await machine.failover.join(one.id, process, 0, 0.0)
        with pytest.raises(TooMany, match="user 0 have 1 members"):
            await machine.failover.join(two.id, process, 0, 0.0)
        await machine.failover.join(roots.id, process, 0, 0.0)


async def test_the_users_of_a_container_have_the_members_of_one_user(machine, autojump_clock, monkeypatch):
    """Its root can make arenas as any of them; outside, the same uid is another user's."""
    monkeypatch.setattr("mpsd.services.requests.MOST_OF_OWNER", 1)
    one, two, outside = (machine.vault.create(name) for name in ("one", "two", "outside"))
    for arena, uid, made_in in ((one, 2000, 7), (two, 2001, 7), (outside, 2000, None)):
        machine.vault.made[arena.id] = replace(arena, owner_uid=uid, pid_namespace=made_in)
    async with machine.mpsd():
        process = machine.process("a")
        for arena in (one, two, outside):
            machine.vault.open(process, arena.id)
        await machine.failover.join(one.id, process, 0, 0.0)
        with pytest.raises(TooMany, match="user 2001 have 1 members"):
            await machine.failover.join(two.id, process, 0, 0.0)
        await machine.failover.join(outside.id, process, 0, 0.0)
