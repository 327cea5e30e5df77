"""Reactions to incidents, on the test's own processes."""

import os
import signal
import subprocess

import pytest
import structlog
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.errors import NoSuchClient
from mpsd.faults.reactions import Reactions
from mpsd.host.processes import process_id
from mpsd.model.domain import DomainState
from mpsd.model.fault import Party
from mpsd.model.process import ProcessId
from mpsd.model.stop import Report, Step, Stopped
from tests.running import running
from tests.unit.faults.incident_world import SETTINGS, IncidentWorld


class FakeStopper:
    """Records the processes that it was asked to end, and when."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.at = 0.0
        self.fails: Exception | None = None
        self.why = ""

    async def stop(self, target, manner, asker) -> Report:
        await trio.lowlevel.checkpoint()
        self.asked.append((target.value, target.start_time))
        self.at = trio.current_time()
        if self.fails is not None:
            raise self.fails
        return Report((Stopped(ProcessId(int(target.value), target.start_time), "default", (Step.SIGKILL,), self.why),))


class Reacting:
    """Incidents with their reactions.  released: for whom nothing is held any more, and whether it lived then."""

    def __init__(self, world: IncidentWorld) -> None:
        self.setup = world
        self.stopper = FakeStopper()
        self.released: list[tuple[ProcessId, bool]] = []
        self.held: set[int] = set()  # pids with a GPU address space that is held after their end
        self.reactions = Reactions(
            world.incidents, world.pool, self.stopper, lambda *event: world.events.append(event), self._release, self._holds
        )
        world.incidents.revised.subscribe(self.reactions.consider)

    def _release(self, process: ProcessId) -> None:
        self.released.append((process, process_id(process.pid) == process))

    def _holds(self, process: ProcessId) -> bool:
        return process.pid in self.held

    def accuse(self, child: subprocess.Popen, state: DomainState = DomainState.FAULT) -> Domain:
        """It is proven to have done it, in a domain of that state, which knows it as a client."""
        domain = self.setup.domain()
        process = process_id(child.pid)
        self.setup.move(process, domain)
        self.setup.lists(domain, child.pid)
        domain.state = state
        self.setup.prove(process)
        return domain

    @property
    def deeds(self) -> list[str]:
        return [each.text for each in self.setup.last.deeds]


def describe(process: ProcessId) -> Party:
    """Return it as a client that connected as the tests' own user, whose process it is."""
    return Party(process, os.geteuid(), f"p{process.pid}")


@pytest.fixture
def scene(tmp_path):
    return Reacting(IncidentWorld(tmp_path, replace(SETTINGS, culprit_seconds=5.0), describe=describe))


async def until_done(scene: Reacting, seconds: float = 60.0) -> None:
    async with running(scene.reactions.run):
        await trio.sleep(seconds)


async def test_a_culprit_in_a_domain_in_fault_is_killed_after_its_time(scene, child, autojump_clock):
    """Its descriptors are closed first: no co-runner needs them any more."""
    scene.accuse(child)
    async with running(scene.reactions.run):
        await trio.sleep(4.9)
        assert child.poll() is None
        await trio.sleep(0.2)
        assert child.wait(5) == -signal.SIGKILL
    assert [(process.pid, was_alive) for process, was_alive in scene.released] == [(child.pid, True)]
    assert scene.stopper.asked == []
    assert scene.deeds == [f"the culprit, pid {child.pid}, was ended by SIGKILL, 5 s after it was known"]


async def test_in_a_domain_that_is_well_its_work_is_ended_first(scene, child, autojump_clock):
    domain = scene.accuse(child, DomainState.READY)
    await until_done(scene)
    assert scene.stopper.asked == [(str(child.pid), process_id(child.pid).start_time)]
    assert not domain.is_ill
    assert (child.poll(), scene.released) == (None, [])  # the stopper is who signals
    assert scene.deeds == [f"the culprit, pid {child.pid}, was ended by sigkill, 5 s after it was known"]


async def test_the_work_of_an_ended_client_with_its_pid_is_left(scene, child, autojump_clock):
    """A culprit can wait until it gets that pid: the other user's child, which has the connections, lost its work."""
    domain = scene.accuse(child, DomainState.READY)
    domain.admit(ProcessId(child.pid, 1))
    await until_done(scene)
    assert scene.stopper.asked == []
    assert child.wait(5) == -signal.SIGKILL


async def test_why_it_was_not_ended_is_noted(scene, child, autojump_clock):
    scene.accuse(child, DomainState.READY)
    scene.stopper.why = "its GPU work was not ended"
    await until_done(scene)
    assert scene.deeds == [f"the culprit, pid {child.pid}, its GPU work was not ended, 5 s after it was known"]


async def test_a_client_that_works_elsewhere_by_now_is_ended_there(scene, child, autojump_clock):
    """The domain of its fault is in FAULT, but a signal would harm the clients of the domain where it works now."""
    scene.accuse(child)
    scene.setup.lists(scene.setup.domain("d2"), child.pid)
    await until_done(scene)
    assert len(scene.stopper.asked) == 1
    assert child.poll() is None


async def test_while_its_domain_may_be_about_to_fault_nothing_is_told_to_it(scene, child, autojump_clock):
    """The vendor's daemon hangs when it gets a command to end a client of a faulting server."""
    domain = scene.accuse(child, DomainState.READY)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.setup.incidents.run)
        nursery.start_soon(scene.reactions.run)
        await trio.sleep(4.5)
        scene.setup.xid(31, "default")
        assert domain.suspect_until == pytest.approx(6.5)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert scene.stopper.at == pytest.approx(6.5, abs=0.05)


async def test_if_it_faults_then_the_culprit_is_killed(scene, child, autojump_clock):
    domain = scene.accuse(child, DomainState.READY)
    async with running(scene.reactions.run):
        await trio.sleep(4.5)
        scene.setup.xid(31, "default")
        await trio.sleep(1)
        assert child.poll() is None
        domain.state = DomainState.FAULT
        scene.setup.pool.notify()
        assert await trio.to_thread.run_sync(child.wait, 5) == -signal.SIGKILL
    assert scene.stopper.asked == []


async def test_one_that_ends_by_itself_is_left_alone(scene, child, mock_clock):
    scene.accuse(child)
    async with running(scene.reactions.run):
        await trio.testing.wait_all_tasks_blocked()
        child.terminate()
        await trio.to_thread.run_sync(child.wait)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
    assert (scene.deeds, scene.released) == ([], [])


CHANGES_OF_MIND = [
    pytest.param(
        lambda world: world.incidents.configure(replace(SETTINGS, ends_culprit=False)), id="the operator wants it no more"
    ),
    pytest.param(lambda world: world.xid(95, gpu="GPU-a"), id="it was the GPU"),
]


@pytest.mark.parametrize("change", CHANGES_OF_MIND)
async def test_a_culprit_that_is_to_be_ended_no_more_lives(scene, child, autojump_clock, change):
    scene.accuse(child)
    async with running(scene.reactions.run):
        await trio.sleep(1)
        change(scene.setup)
        await trio.sleep(10)
    assert child.poll() is None
    assert scene.released == []


async def test_nobody_is_ended_where_that_is_not_wanted(tmp_path, child, autojump_clock):
    scene = Reacting(IncidentWorld(tmp_path, replace(SETTINGS, ends_culprit=False)))
    scene.accuse(child)
    await until_done(scene)
    assert child.poll() is None


async def test_a_culprit_that_has_gone_is_no_error(scene, autojump_clock):
    gone = ProcessId(4_194_305, 7)
    domain = scene.setup.domain()
    scene.setup.move(gone, domain)
    scene.setup.prove(gone)
    await until_done(scene)
    assert scene.deeds == []


@pytest.mark.parametrize(
    ("error", "logged", "noted"),
    [
        pytest.param(NoSuchClient("pid 5 is no client"), [], ["could not be ended: pid 5 is no client"], id="it has just gone"),
        pytest.param(ValueError("oops"), ["faults.bug"], [], id="a bug"),
    ],
)
async def test_what_goes_wrong_in_one_act_ends_that_alone(scene, child, autojump_clock, error, logged, noted):
    scene.accuse(child, DomainState.READY)
    scene.stopper.fails = error
    with structlog.testing.capture_logs() as logs:
        async with running(scene.reactions.run):
            await trio.sleep(10)
            scene.setup.xid(79, gpu="GPU-z")
            await trio.sleep(1)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == logged
    first = scene.setup.incidents.incident(1)
    assert [each.text.partition(", ")[2].partition(", ")[2] for each in first.deeds] == noted
    assert list(scene.setup.pool.drained) == ["GPU-z"]  # and the next one is done


async def test_a_gpu_that_needs_a_reset_is_drained_once(scene, autojump_clock):
    """Later revisions do not drain it again when it was pardoned."""
    async with running(scene.reactions.run):
        with structlog.testing.capture_logs() as logs:
            scene.setup.xid(79)
            await trio.sleep(1)
        assert "Xid 79 (fault 1)" in scene.setup.pool.drained["GPU-a"].why
        assert ("gpu.drained", {"gpu": "GPU-a", "number": 1, "xids": [79]}) in scene.setup.events
        assert [entry["gpu"] for entry in logs if entry["log_level"] == "critical"] == ["GPU-a"]
        assert scene.deeds == ["the GPU takes no new clients: it has to be reset or looked at"]
        scene.setup.incidents.pardon("GPU-a")
        scene.setup.xid(119)
        await trio.sleep(1)
        assert scene.setup.pool.drained == {}


async def test_what_there_is_no_room_for_is_said_and_tried_again(scene, autojump_clock):
    """128 wait already; the reaction is logged."""
    for number in range(128):
        scene.setup.xid(79, gpu=f"GPU-{number}")
    with structlog.testing.capture_logs() as logs:
        scene.setup.xid(79, gpu="GPU-late")
    (said,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (said["event"], said["number"]) == ("fault.not_answered", 129)
    late = scene.setup.last
    await until_done(scene, 1)
    assert "GPU-late" not in scene.setup.pool.drained
    assert len(scene.setup.pool.drained) == 128
    scene.reactions.consider(late)
    await until_done(scene, 1)
    assert "GPU-late" in scene.setup.pool.drained


@pytest.mark.parametrize(("uid", "is_done"), [(2000, True), (1000, False)])
async def test_a_user_with_many_culprits_keeps_no_other_users_from_being_ended(
    tmp_path, autojump_clock, monkeypatch, uid, is_done
):
    """The places were for those who came first, and lasted for the time that a culprit has to clean up, or is unread."""
    monkeypatch.setattr("mpsd.host.processes.is_alive", lambda process: True)
    uids = {ProcessId(999_999, 7): uid}
    scene = Reacting(IncidentWorld(tmp_path, SETTINGS, describe=lambda each: Party(each, uids.get(each, 1000), f"p{each.pid}")))
    domain = scene.setup.domain()
    processes = scene.setup.arrive(domain, *range(1_000_000, 1_000_300), 999_999)
    with structlog.testing.capture_logs() as logs:
        for process in processes:
            scene.setup.prove(process, domain="default")
    last = [each for each in logs if each["event"] == "fault.not_answered" and "999999" in each["act"]]
    assert (scene.setup.last.culprit, not last) == (processes[-1], is_done)


async def test_what_is_remembered_is_bounded(scene, autojump_clock):
    for number in range(300):
        scene.setup.xid(63, gpu=f"GPU-{number}")
    assert len(scene.reactions._done) == 256


@pytest.mark.parametrize("at_work", [DomainState.FAULT, DomainState.READY])
async def test_a_culprit_that_has_become_another_users_is_left(tmp_path, child, autojump_clock, at_work):
    """It executed a program of another user's in the time that it has to clean up."""
    settings = replace(SETTINGS, culprit_seconds=5.0)
    scene = Reacting(IncidentWorld(tmp_path, settings, describe=lambda process: Party(process, os.geteuid() + 1000)))
    scene.accuse(child, at_work)
    await until_done(scene)
    assert (child.poll(), scene.released, scene.stopper.asked) == (None, [], [])
    assert scene.deeds == [f"the culprit, pid {child.pid}, could not be ended: it is another user's by now"]
