"""Who will be a member is kept apart from those who are."""

import pytest
from trio.testing import MockClock

from mpsd.errors import BadRequest, TooMany
from mpsd.failover import enlisted
from mpsd.failover.enlisted import Place
from tests.unit.failover.room import OWNER


async def test_those_of_one_service_are_kept_apart(room, autojump_clock: MockClock):
    async with room.mpsd():
        await room.serves("a")
        placed, fresh, other, stranger = (room.process(domain) for domain in ("b", "", "c", ""))
        plans = (placed, "llm", OWNER), (fresh, "llm", OWNER), (other, "dit", OWNER), (stranger, "llm", 2000)
        for process, name, uid in plans:
            assert await room.failover.enlist(name, uid, process, uid) == {}
        assert room.enlisted.avoid(fresh) == {"a", "b"}
        assert room.enlisted.avoid(placed) == {"a"}
        assert room.enlisted.avoid(other) == set()
        assert room.enlisted.avoid(stranger) == set()
        assert room.enlisted.avoid(None) == room.enlisted.avoid(room.process("")) == set()


async def test_who_has_ended_is_in_nobodys_way(room, autojump_clock: MockClock):
    async with room.mpsd():
        first, second = room.process("a"), room.process("")
        await room.failover.enlist("llm", OWNER, first, OWNER)
        await room.failover.enlist("llm", OWNER, second, OWNER)
        assert room.enlisted.avoid(second) == {"a"}
        await room.die(first)
        assert room.enlisted.avoid(second) == set()
        with pytest.raises(BadRequest):
            await room.failover.enlist("llm", OWNER, first, OWNER)


async def test_without_root_each_is_told_where_to_go(room, autojump_clock: MockClock):
    free = ["a", "b", "c"]

    async def find_place(avoid: frozenset[str]) -> Place:
        domain = next(each for each in free if each not in avoid)
        return Place(domain, {"CUDA_MPS_PIPE_DIRECTORY": f"/{domain}"})

    room.find_place = find_place
    async with room.mpsd():
        for domain in free:
            told = await room.failover.enlist("llm", OWNER, room.process(""), OWNER)
            assert told == {"CUDA_MPS_PIPE_DIRECTORY": f"/{domain}"}


async def test_who_ends_while_a_place_is_found_is_forgotten(room, autojump_clock: MockClock):
    first = room.process("")

    async def find_place(avoid: frozenset[str]) -> Place:
        await room.die(first)
        return Place("a", {})

    room.find_place = find_place
    async with room.mpsd():
        await room.failover.enlist("llm", OWNER, first, OWNER)
        second = room.process("")
        await room.failover.enlist("llm", OWNER, second, OWNER)
        assert room.enlisted.avoid(second) == set()


async def test_they_are_counted(room, autojump_clock: MockClock, monkeypatch):
    monkeypatch.setattr(enlisted, "MOST_OF_USER", 2)
    monkeypatch.setattr(enlisted, "MOST", 4)
    async with room.mpsd():

        async def enlist(uid: int) -> None:
            process = room.process("")
            await room.failover.enlist("llm", OWNER, process, uid)
            await room.failover.enlist("llm", OWNER, process, uid)  # once more is no more

        await enlist(1000)
        await enlist(1000)
        with pytest.raises(TooMany, match="of user 1000"):
            await enlist(1000)
        await enlist(0)
        await enlist(0)
        for uid in (0, 2000):
            with pytest.raises(TooMany, match="4 processes"):
                await enlist(uid)
