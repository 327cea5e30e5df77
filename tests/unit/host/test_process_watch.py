"""Whose processes are watched to their ends: a share for each user, since each watch takes a descriptor."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import structlog
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
            watch.watch(process, EVE)
        with pytest.raises(TooMany, match="3 processes of user 1000"):
            watch.watch(users.process(EVE), EVE)
        watch.watch(first, EVE)  # again: it is watched already
        for uid in (ADA, 0):
            watch.watch(users.process(uid), uid)
        users.end(first)
        while not ended:
            await trio.testing.wait_all_tasks_blocked(0.01)
        watch.watch(users.process(EVE), EVE)


async def test_all_uids_of_one_range_are_one_user(users: Users) -> None:
    async with watching([]) as watch:
        for number in range(3):
            watch.watch(users.process(HER_CONTAINER + number), HER_CONTAINER + number)
        with pytest.raises(TooMany):
            watch.watch(users.process(HER_CONTAINER + 3), HER_CONTAINER + 3)


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
            watch.watch(su(), 0)
            with pytest.raises(TooMany, match="1 processes of user 1000"):
                watch.watch(su(), 0)


async def test_the_last_places_are_kept_for_users_with_few(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "MOST", 8)
    monkeypatch.setattr(process_watch, "MOST_OF_USER", 100)
    async with watching([]) as watch:
        for _ in range(7):
            watch.watch(users.process(EVE), EVE)
        with pytest.raises(TooMany, match="kept"):
            watch.watch(users.process(EVE), EVE)
        watch.watch(users.process(ADA), ADA)


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
        watch.watch(first, EVE)
        for _ in range(20):
            watch.watch(users.process(EVE), EVE)
        Uid.compared = 0
        watch.watch(users.process(EVE), EVE)
        assert Uid.compared < 10
        users.end(first)
        while not ended:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert watch._count == {EVE: 21}
    assert not watch._count


async def test_a_process_counts_against_the_user_who_connected(users: Users) -> None:
    """It executes a program that becomes root's, and then a child joins by the connection that it has inherited."""
    async with watching([]) as watch:
        for _ in range(3):
            watch.watch(users.process(0), EVE)
        with pytest.raises(TooMany, match="3 processes of user 1000"):
            watch.watch(users.process(0), EVE)


async def test_what_has_become_another_users_is_not_killed(users: Users) -> None:
    ours, theirs = users.process(os.geteuid()), users.process(os.geteuid())
    ended: list[ProcessId] = []
    async with watching(ended) as watch:
        watch.watch(ours, os.geteuid())
        watch.watch(theirs, os.geteuid() + EVE)
        with structlog.testing.capture_logs() as logs:
            assert not watch.kill(theirs)
            assert watch.kill(ours)
        assert [(entry["event"], entry["pid"], entry["why"]) for entry in logs] == [
            ("service.not_killed", theirs.pid, "it is another user's by now")
        ]
        while not ended:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert ended == [ours]
        assert processes.is_alive(theirs)
