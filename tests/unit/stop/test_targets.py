"""Finding the processes that a stop means, for a user who has many and asks often."""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
import trio

from mpsd.domains.pool import Pool
from mpsd.errors import BadRequest, TooMany
from mpsd.host import process_reader, processes
from mpsd.host.inspector import Inspector
from mpsd.host.ownership import is_ones_own
from mpsd.model.process import ProcessId
from mpsd.model.reach import EVERYTHING
from mpsd.model.stop import Asker, Manner, Target, TargetKind
from mpsd.stop import targets
from mpsd.stop.stopper import Stopper
from mpsd.stop.targets import Found, Targets
from tests.cgroup_files import CgroupFiles
from tests.descriptors import descriptors
from tests.unit.conftest import child

Child = subprocess.Popen[bytes]
another = child
MANY, CALLERS = 300, 20
FIRST = range(4_000_000, 4_000_000 + MANY)  # such pids are in use on hardly any machine
HERE = Target(TargetKind.CGROUP, "/batch")


@pytest.fixture
def me() -> ProcessId:
    found = processes.process_id(os.getpid())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CgroupFiles:
    made = CgroupFiles(tmp_path_factory.mktemp("kernel"))
    for pid in FIRST:
        made.put(pid, "/batch")
    return made


@pytest.fixture
def inspector(files: CgroupFiles) -> Iterator[Inspector]:
    made = files.inspector(5.0)
    made.start()
    yield made
    made.close()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[ProcessId]:
    """Processes in the cgroup, of two users."""
    monkeypatch.setattr(targets.processes, "is_alive", lambda process: True)
    monkeypatch.setattr(targets.processes, "sole_uid", lambda pid: 1000 + pid % 2)
    monkeypatch.setattr(targets.processes, "owner", lambda pid: (1000 + pid % 2, 0))
    monkeypatch.setattr(targets.processes, "pid_namespaces", lambda pid: (1,))
    return [ProcessId(number, 1) for number in FIRST]


def a_pool() -> Pool:
    return Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]


class LooksInATurn(trio.abc.Instrument):
    """How many processes are looked at in one turn of the event loop, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def before_io_wait(self, timeout: float) -> None:
        self.now, self.most = 0, max(self.most, self.now)


async def test_no_number_of_clients_and_callers_blocks_the_event_loop(
    clients: list[ProcessId], inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of one user's 64 connections can ask at once: 2,000 clients took 0.33 s of the loop, for each of them."""
    looks, find = LooksInATurn(), Targets(a_pool(), inspector, lambda: clients).find
    found: list[Found] = []

    def is_alive(process: ProcessId) -> bool:
        looks.now += 1
        return True

    async def ask() -> None:
        found.append(await find(HERE, Asker(1000, os.getpid())))

    monkeypatch.setattr(targets.processes, "is_alive", is_alive)
    trio.lowlevel.add_instrument(looks)
    async with trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(ask)
    trio.lowlevel.remove_instrument(looks)
    mine = [each for each in clients if each.pid % 2 == 0]
    assert found == [Found(mine, MANY - len(mine))] * CALLERS
    assert looks.most <= targets._AT_ONCE


async def test_slow_looks_are_fewer_in_a_turn(
    clients: list[ProcessId], inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes 10 to 20 ms to write the status of a process with 65,536 groups."""
    looks, asker = LooksInATurn(), Asker(1000, os.getpid())
    those = Targets(a_pool(), inspector, lambda: clients[:CALLERS])

    def sole_uid(pid: int) -> int:
        looks.now += 1
        time.sleep(2 * targets._TURN_SECONDS)
        return 1000

    monkeypatch.setattr(targets.processes, "sole_uid", sole_uid)
    trio.lowlevel.add_instrument(looks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(those.find, HERE, asker)
        for each in clients[:CALLERS]:
            nursery.start_soon(those.may_still_end, each, asker)
    trio.lowlevel.remove_instrument(looks)
    assert looks.most == 1


async def test_if_one_is_refused_no_descriptor_stays(
    clients: list[ProcessId], inspector: Inspector, me: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopper = Stopper(a_pool(), Targets(a_pool(), inspector, lambda: clients[:6]))
    opened: list[int] = []

    def open_pidfd(process: ProcessId) -> int:
        opened.append(os.pidfd_open(me.pid))
        return opened[-1]

    monkeypatch.setattr("mpsd.stop.stopper.processes.open_pidfd", open_pidfd)
    stopper._running[clients[4]] = 2
    before = descriptors()
    with pytest.raises(TooMany, match=f"pid {clients[4].pid} is being ended by 2 requests already"):
        await stopper.stop(HERE, Manner(), Asker(1000, os.getpid()))
    assert len(opened) == 2
    assert descriptors() == before


async def test_a_client_whose_cgroup_cannot_be_read_is_told_of_and_left(
    child: Child, another: Child, files: CgroupFiles, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.8 one user can delay each read: the event loop waited, and a stop left victims out without a word."""
    monkeypatch.setattr(targets, "_READ_SECONDS", 1.0)
    monkeypatch.setattr(targets, "_MOST_READ", 1)
    monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0)
    first, second = sorted(found for each in (child, another) if (found := processes.process_id(each.pid)))
    files.put(first.pid, "/batch")
    files.hold(second.pid)
    looks = Targets(a_pool(), inspector, lambda: (first, second))
    report = await Stopper(a_pool(), looks).stop(HERE, Manner(), Asker(None, os.getpid()))
    ended, left = report.stopped
    assert (ended.process, ended.has_ended) == (first, True)
    assert left.process == second
    assert "its cgroups or its user could not be read" in left.why
    assert processes.is_alive(second)
    with pytest.raises(BadRequest, match=f"pid {second.pid}, the caller, were not read"):
        await looks.find(HERE, Asker(1000, second.pid))


@pytest.mark.parametrize(("is_inside", "waits"), [(True, 0), (False, 1)], ids=["in a container", "on the host"])
async def test_clients_of_unknown_user_and_cgroup_concern_no_container_and_delay_others_once(
    child: Child, another: Child, files: CgroupFiles, inspector: Inspector, me: ProcessId, monkeypatch: pytest.MonkeyPatch,
    is_inside: bool, waits: int,
) -> None:  # fmt: skip
    """One client of root's in any container, if held, delayed the stops of all root's containers by 10 s, and failed them."""
    slept, really_sleep = list[float](), trio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await really_sleep(seconds)

    monkeypatch.setattr(targets, "_READ_SECONDS", 1.0)
    monkeypatch.setattr(targets, "_MOST_READ", 1)
    monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.0123)
    monkeypatch.setattr(trio, "sleep", sleep)
    own, other = sorted(found for each in (child, another) if (found := processes.process_id(each.pid)))
    monkeypatch.setattr(targets, "is_ones_own", lambda asker, pid: None if pid == other.pid else is_ones_own(asker, pid))
    files.put(own.pid, "/batch")
    files.put(me.pid, "/batch")
    files.hold(other.pid)
    asker = Asker(os.geteuid(), me.pid, processes.pid_namespaces(me.pid)[0] if is_inside else EVERYTHING)
    report = await Stopper(a_pool(), Targets(a_pool(), inspector, lambda: (own, other))).stop(HERE, Manner(), asker)
    assert [each.process for each in report.stopped] == ([own] if is_inside else [own, other])
    assert report.stopped[0].has_ended
    assert slept.count(process_reader.UNREAD_SECONDS) == waits
