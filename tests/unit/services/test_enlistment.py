"""Future members are kept apart from current ones."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trio.testing import MockClock

from mpsd.errors import BadRequest, TooMany
from mpsd.model.process import ProcessId
from mpsd.model.service import ServiceSettings
from mpsd.services import enlistment
from mpsd.services.enlistment import Place
from mpsd.services.store import EnlistmentPlan, ServiceStore
from tests.unit.services.room import OWNER


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
    monkeypatch.setattr(enlistment, "MOST_OF_USER", 2)
    monkeypatch.setattr(enlistment, "MOST", 4)
    async with room.mpsd():

        async def enlist(uid: int) -> None:
            process = room.process("")
            await room.failover.enlist("llm", OWNER, process, uid)
            await room.failover.enlist("llm", OWNER, process, uid)  # a repeated call changes nothing

        await enlist(100_001)
        await enlist(100_002)
        with pytest.raises(TooMany, match="of user 100000"):  # the same person
            await enlist(100_003)
        await enlist(0)
        await enlist(0)
        for uid in (0, 2000):
            with pytest.raises(TooMany, match="4 processes"):
                await enlist(uid)


async def test_the_next_mpsd_keeps_them_apart_too(room, autojump_clock: MockClock):
    """One that is placed by another mpsd than it enlisted with enlists no more: its CUDA has begun."""
    placed, fresh, ended = room.process("a"), room.process(""), room.process("b")
    async with room.mpsd():
        for process in (placed, fresh, ended):
            await room.failover.enlist("llm", OWNER, process, OWNER)
    await room.die(ended)
    async with room.mpsd():
        assert room.enlisted.avoid(fresh) == {"a"}
        await room.die(placed)
        assert room.enlisted.avoid(fresh) == set()
    async with room.mpsd():
        assert set(room.enlisted._plans) == {fresh}


async def test_where_each_was_sent_is_known_to_the_next_mpsd(room, autojump_clock: MockClock):
    async def find_place(avoid: frozenset[str]) -> Place:
        return Place(min({"a", "b", "c"} - avoid), {})

    room.find_place = find_place
    first, second = room.process(""), room.process("")
    async with room.mpsd():
        await room.failover.enlist("llm", OWNER, first, OWNER)
    async with room.mpsd():
        await room.failover.enlist("llm", OWNER, second, OWNER)
        assert (room.enlisted.avoid(second), room.enlisted.avoid(first)) == ({"a"}, {"b"})


def test_services_of_the_version_before_are_kept(tmp_path: Path):
    path = tmp_path / "services.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript("""
            CREATE TABLE services (arena_id INTEGER PRIMARY KEY, standbys INTEGER NOT NULL, sm_percent REAL,
                                   memory_bytes INTEGER, heartbeat_seconds REAL NOT NULL);
            INSERT INTO services VALUES (7, 2, 30.0, NULL, 0.5);
            PRAGMA user_version=1;
        """)
    with closing(ServiceStore(path)) as store:
        assert store.load({7}) == {7: ServiceSettings(2, 30.0, None, 0.5)}
        assert store.plans() == {}
        store.enlist(ProcessId(4, 5), EnlistmentPlan("llm", OWNER, OWNER, "a"))
    with closing(ServiceStore(path)) as store:
        assert store.plans() == {ProcessId(4, 5): EnlistmentPlan("llm", OWNER, OWNER, "a")}
