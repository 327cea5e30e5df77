"""Whose processes are watched to their ends: a share for each user, since each watch takes a descriptor."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio

from mpsd.errors import TooMany
from mpsd.fairness.uid_ranges import parse
from mpsd.host import process_watch, processes
from mpsd.host.process_watch import ProcessWatch
from mpsd.model.process import ProcessId

EVE, HER_CONTAINER, ADA = 1000, 100_000, 1001


class Users:
    """Processes that live, of whom a test says whose they are."""

    def __init__(self) -> None:
        self.uids: dict[int, int] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def process(self, uid: int) -> ProcessId:
        made = subprocess.Popen(["sleep", "600"])
        self._running.append(made)
        self.uids[made.pid] = uid
        found = processes.process_id(made.pid)
        assert found is not None
        return found

    def end(self, process: ProcessId) -> None:
        [running] = [each for each in self._running if each.pid == process.pid]
        running.kill()

    def close(self) -> None:
        for each in self._running:
            each.kill()
            each.wait()


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[Users]:
    made = Users()
    monkeypatch.setattr(processes, "charged_uid", lambda pid: made.uids[pid])
    monkeypatch.setattr(process_watch, "MOST_OF_USER", 3)
    yield made
    made.close()


@asynccontextmanager
async def watching(ended: list[ProcessId]) -> AsyncIterator[ProcessWatch]:
    watch = ProcessWatch(lambda process, seen_ns: ended.append(process), parse(f"eve:{HER_CONTAINER}:65536\n"))
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        yield watch
        nursery.cancel_scope.cancel()


async def test_a_user_with_many_leaves_the_others_theirs(users: Users) -> None:
    """A process is watched to its end: one that joins a service and leaves it again is not counted there any more."""
    ended: list[ProcessId] = []
    async with watching(ended) as watch:
        first = users.process(EVE)
        for process in (first, users.process(EVE), users.process(EVE)):
            watch.watch(process)
        with pytest.raises(TooMany, match="3 processes of user 1000"):
            watch.watch(users.process(EVE))
        watch.watch(first)  # again: it is watched already
        for process in (users.process(ADA), users.process(0)):
            watch.watch(process)
        users.end(first)
        while not ended:
            await trio.testing.wait_all_tasks_blocked(0.01)
        watch.watch(users.process(EVE))


async def test_all_uids_of_one_range_are_one_user(users: Users) -> None:
    async with watching([]) as watch:
        for number in range(3):
            watch.watch(users.process(HER_CONTAINER + number))
        with pytest.raises(TooMany):
            watch.watch(users.process(HER_CONTAINER + 3))


@pytest.mark.root
async def test_programs_of_roots_that_a_user_runs_are_that_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that executes su, which asks for a password, has root's effective uid: a user could have all places so."""
    monkeypatch.setattr(process_watch, "MOST_OF_USER", 1)
    with ExitStack() as running:

        def su() -> ProcessId:
            made = running.enter_context(subprocess.Popen(["sleep", "600"], preexec_fn=lambda: os.setresuid(EVE, 0, 0)))
            running.callback(made.kill)
            found = processes.process_id(made.pid)
            assert found is not None
            return found

        async with watching([]) as watch:
            watch.watch(su())
            with pytest.raises(TooMany, match="1 processes of user 1000"):
                watch.watch(su())


async def test_the_last_places_are_kept_for_users_with_few(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "MOST", 8)
    monkeypatch.setattr(process_watch, "MOST_OF_USER", 100)
    async with watching([]) as watch:
        for _ in range(7):
            watch.watch(users.process(EVE))
        with pytest.raises(TooMany, match="kept"):
            watch.watch(users.process(EVE))
        watch.watch(users.process(ADA))


class Uid(int):
    """A uid that counts how often it is compared."""

    compared = 0

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Uid.compared += 1
        return int(self) == other


async def test_one_more_process_costs_the_same_beside_many(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that were watched were counted for each."""
    monkeypatch.setattr(process_watch, "MOST_OF_USER", 100)
    ended: list[ProcessId] = []
    async with watching(ended) as watch:
        monkeypatch.setattr(watch, "_share_of", Uid)
        first = users.process(EVE)
        watch.watch(first)
        for _ in range(20):
            watch.watch(users.process(EVE))
        Uid.compared = 0
        watch.watch(users.process(EVE))
        assert Uid.compared < 10
        users.end(first)
        while not ended:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert watch._count == {EVE: 21}
    assert not watch._count
