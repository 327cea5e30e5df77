"""Reactions to a fault that the module contained: its client does not run on. The processes are the test's own."""

import os
import signal

import pytest
import structlog
import trio
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.errors import NoSuchClient
from mpsd.faults import reactions
from mpsd.host.processes import process_id, state
from mpsd.model.domain import DomainState
from mpsd.model.fault import FaultClass, Party, Source
from mpsd.model.process import ProcessId
from mpsd.uvm.abi import EventKind, UvmEvent
from mpsd.uvm.fault_digest import digest_guarded, doubted
from tests.running import running
from tests.unit.faults.incident_world import SETTINGS, IncidentWorld
from tests.unit.faults.test_reactions import Reacting, describe


def wait_stopped(pid: int) -> None:
    """Wait until the kernel reports the child as stopped."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def wait_continued(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WCONTINUED)


@pytest.fixture(params=[True, False], ids=["culprits are ended", "culprits are left alone"])
def scene(tmp_path, request):
    """With any handling of other culprits."""
    settings = replace(SETTINGS, ends_culprit=request.param, culprit_seconds=60.0)
    return Reacting(IncidentWorld(tmp_path, settings, describe=describe))


def fault(scene: Reacting, process: ProcessId) -> None:
    scene.setup.see(
        Source.KMOD, process=process, is_proof=True, is_contained=True, fault_class=FaultClass.MMU, address=4096, gpu="GPU-a"
    )


def stop(scene: Reacting, process: ProcessId) -> None:
    """Send the module's STOPPED record."""
    scene.setup.see(Source.KMOD, process=process, gpu="GPU-a")


def place(scene: Reacting, process: ProcessId) -> Domain:
    domain = scene.setup.domain()
    scene.setup.move(process, domain)
    scene.setup.lists(domain, process.pid)
    return domain


async def test_it_is_frozen_before_anything_else_is_done(scene, child, autojump_clock):
    """When the source's call returns: by then it may have read zeros."""
    process = process_id(child.pid)
    domain = place(scene, process)
    with structlog.testing.capture_logs() as logs:
        fault(scene, process)
    wait_stopped(child.pid)
    assert [entry["pid"] for entry in logs if entry["event"] == "fault.contained"] == [child.pid]
    assert not domain.is_ill  # and its co-runners go on


async def test_once_its_channels_are_stopped_it_is_killed_as_it_is_and_stays_held(scene, child, autojump_clock):
    """It never runs again, and the vendor's daemon gets no command: for a frozen client it would hang.

    Its work may still run: its GPU address space is closed no sooner than that of any killed client.
    """
    process = process_id(child.pid)
    place(scene, process)
    scene.held.add(child.pid)
    async with running(scene.reactions.run):
        fault(scene, process)
        await trio.sleep(0.9)
        wait_stopped(child.pid)
        stop(scene, process)
        began = trio.current_time()
        await trio.sleep(0.1)
        assert child.wait(5) == -signal.SIGKILL
        assert trio.current_time() - began < 1
    assert scene.stopper.asked == []
    assert scene.released == []
    assert scene.deeds == [
        f"pid {child.pid}, whose fault was contained, was sent SIGSTOP: it reads zeros",
        f"pid {child.pid}, whose fault was contained, was ended by SIGKILL, and its GPU address space is held for what may "
        "still run",
    ]


async def test_one_that_nobody_holds_has_its_work_ended_first(scene, child, autojump_clock):
    """Stopped channels do not allow a kill: running work goes on, and resets the group once the address space is gone."""
    process = process_id(child.pid)
    place(scene, process)
    async with running(scene.reactions.run):
        fault(scene, process)
        stop(scene, process)
        await trio.sleep(0.1)
    assert scene.stopper.asked == [(str(child.pid), process.start_time)]
    assert scene.released == []


async def test_channels_that_are_stopped_late_had_work_that_still_runs(scene, child, autojump_clock):
    """The driver waits for idle channels before it preempts them: then its work is ended, held or not."""
    process = process_id(child.pid)
    place(scene, process)
    scene.held.add(child.pid)
    async with running(scene.reactions.run):
        fault(scene, process)
        await trio.sleep(1.1)
        stop(scene, process)
        await trio.sleep(0.1)
    assert scene.stopper.asked == [(str(child.pid), process.start_time)]


async def test_if_they_are_not_stopped_its_work_is_ended_first(scene, child, autojump_clock):
    """A signal during its kernel would hurt its co-runners."""
    process = process_id(child.pid)
    place(scene, process)
    async with running(scene.reactions.run):
        fault(scene, process)
        await trio.sleep(0.9)
        assert scene.stopper.asked == []
        await trio.sleep(0.2)
    assert scene.stopper.asked == [(str(child.pid), process.start_time)]
    assert scene.released == []  # by the stopper, when that is done
    assert scene.deeds[-1] == f"pid {child.pid}, whose fault was contained, was ended by sigkill"


class ThawingStopper:
    """As the real one does it: continued before terminate_client, which then goes wrong."""

    def __init__(self, scene: Reacting, why: str) -> None:
        self.scene, self.why = scene, why

    async def stop(self, target, manner, asker):
        pid = int(target.value)
        wait_stopped(pid)  # one that has not come to its SIGSTOP yet forgets it, and is never continued
        signal.pidfd_send_signal(self.scene.pidfd, signal.SIGCONT)
        wait_continued(pid)
        self.scene.stopper.why = self.why
        return await self.scene.stopper.stop(target, manner, asker)


async def test_where_its_work_could_not_be_ended_it_stays_frozen(scene, child, autojump_clock):
    """mpsd logs that."""
    process = process_id(child.pid)
    place(scene, process)
    scene.pidfd = reactions.processes.open_pidfd(process)
    scene.reactions._stopper = ThawingStopper(scene, "its GPU work was not ended")
    with structlog.testing.capture_logs() as logs:
        async with running(scene.reactions.run):
            fault(scene, process)
            await trio.sleep(6)
    wait_stopped(child.pid)
    (said,) = [entry for entry in logs if entry["event"] == "fault.contained_left"]
    assert (said["log_level"], said["pid"], said["why"]) == ("error", child.pid, "its GPU work was not ended")
    assert child.poll() is None


@pytest.mark.parametrize("is_known", [True, False], ids=["its domain is in FAULT", "it is in no domain of ours"])
async def test_where_there_is_nobody_to_hurt_it_is_killed(scene, child, autojump_clock, is_known):
    """A process without MPS may fault as well: the policy is for all of the machine."""
    process = process_id(child.pid)
    if is_known:
        place(scene, process).state = DomainState.FAULT
    async with running(scene.reactions.run):
        fault(scene, process)
        await trio.sleep(6)
        assert child.wait(5) == -signal.SIGKILL
    assert scene.stopper.asked == []


async def test_one_that_is_no_client_any_more_is_killed(scene, child, autojump_clock):
    process = process_id(child.pid)
    place(scene, process)
    scene.stopper.fails = NoSuchClient("pid 5 is no client")
    async with running(scene.reactions.run):
        fault(scene, process)
        await trio.sleep(6)
        assert child.wait(5) == -signal.SIGKILL


async def test_one_that_the_module_has_killed_is_left_at_that(scene, child, autojump_clock):
    process = process_id(child.pid)
    place(scene, process)
    with structlog.testing.capture_logs() as logs:
        async with running(scene.reactions.run):
            fault(scene, process)
            await trio.sleep(0.5)
            child.kill()
            child.wait()
            stop(scene, process)
            await trio.sleep(6)
    assert (scene.released, scene.stopper.asked) == ([], [])
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == []


async def test_one_that_had_gone_before_is_no_error(scene, autojump_clock):
    gone = ProcessId(4_194_305, 7)
    place(scene, gone)
    with structlog.testing.capture_logs() as logs:
        async with running(scene.reactions.run):
            fault(scene, gone)
            await trio.sleep(6)
    assert scene.deeds == []
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == []


async def test_one_that_may_not_be_signalled_is_said_aloud(scene, child, autojump_clock, monkeypatch):
    """Without root, of another user: mpsd logs that."""

    def refuse(pidfd, number):
        raise PermissionError(1, "Operation not permitted")

    process = process_id(child.pid)
    place(scene, process)
    monkeypatch.setattr(reactions.signal, "pidfd_send_signal", refuse)
    with structlog.testing.capture_logs() as logs:
        fault(scene, process)
    (said,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (said["event"], said["pid"], said["why"]) == ("fault.not_frozen", child.pid, "Operation not permitted")


async def test_further_faults_of_it_change_nothing(scene, child, autojump_clock):
    process = process_id(child.pid)
    place(scene, process)
    scene.held.add(child.pid)
    async with running(scene.reactions.run):
        fault(scene, process)
        await trio.sleep(0.5)
        fault(scene, process)
        stop(scene, process)
        await trio.sleep(0.5)
        assert child.wait(5) == -signal.SIGKILL
        await trio.sleep(10)
    assert len(scene.deeds) == 2


async def test_what_has_become_another_users_is_neither_frozen_nor_ended(tmp_path, child, autojump_clock):
    """It executed a program of another user's after the fault: its own user may not stop that one."""
    scene = Reacting(IncidentWorld(tmp_path, SETTINGS, describe=lambda process: Party(process, os.geteuid() + 1000)))
    process = process_id(child.pid)
    place(scene, process)
    scene.held.add(child.pid)
    async with running(scene.reactions.run):
        with structlog.testing.capture_logs() as logs:
            fault(scene, process)
            stop(scene, process)
            await trio.sleep(60)
    assert [(entry["pid"], entry["why"]) for entry in logs if entry["event"] == "fault.not_frozen"] == [
        (child.pid, "it is another user's by now")
    ]
    assert (child.poll(), state(child.pid) in "RS", scene.stopper.asked) == (None, True, [])
    assert f"pid {child.pid}, whose fault was contained, could not be ended: it is another user's by now" in scene.deeds


async def test_who_may_have_another_users_va_space_is_neither_frozen_nor_ended(scene, child, autojump_clock):
    """Another user's process can send it a descriptor of its own VA space, and fault there at the addresses of its guards.

    An access to a guard froze and ended it where another fault of the domain, with no culprit, was near.
    """
    process = process_id(child.pid)
    domain = place(scene, process)
    neighbours = scene.setup.arrive(domain, 4001, 4002)
    scene.setup.lists(domain, process.pid, *(each.pid for each in neighbours))
    event = UvmEvent(EventKind.GPU_FAULT, 1, "write", 4096, 4, 0)
    seen = digest_guarded([event], process, domain.name, domain.gpus, scene.setup.now_ns())
    async with running(scene.reactions.run):
        scene.setup.incidents.see(doubted(seen, "it has several VA spaces"))
        scene.setup.xid(13, domain.name)
        scene.setup.say_fault(domain)
        await trio.sleep(10)
        assert scene.setup.last.suspects
        assert (child.poll(), state(child.pid) in "RS", scene.stopper.asked) == (None, True, [])
