"""A culprit whose user holds its /proc for a moment, when mpsd wants to end it."""

import errno
import signal
import subprocess

import pytest
import trio
from structlog.testing import capture_logs

from mpsd.errors import TooMany
from mpsd.faults import reactions
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId
from mpsd.stop.stopper import Stopper
from tests.running import running
from tests.unit.faults.test_contained import fault, place, wait_stopped
from tests.unit.faults.test_reactions import Reacting, scene
from tests.unit.stop.test_targets import a_pool
from tests.unit.stop.test_unread_processes import HeldAfterFind

__all__ = ["scene"]  # a fixture
HELD = OSError(errno.EBUSY, "it keeps a reader waiting in the kernel")


class Held:
    """The process can be read from this trio time on."""

    def __init__(self, until: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self._until, self._open, self._is_own = until, processes.open_pidfd, reactions.is_ones_own
        monkeypatch.setattr(reactions.processes, "open_pidfd", self._open_pidfd)
        monkeypatch.setattr(reactions, "is_ones_own", self._is_ones_own)

    def _open_pidfd(self, process: ProcessId) -> int | None:
        if trio.current_time() < self._until:
            raise HELD
        return self._open(process)

    def _is_ones_own(self, asker, pid: int) -> bool | None:
        return None if trio.current_time() < self._until else self._is_own(asker, pid)


async def test_a_held_culprit_is_ended_when_it_is_let_go(
    scene: Reacting, child: subprocess.Popen, autojump_clock, monkeypatch
) -> None:
    """It counted as ended, so that no later revision of the incident ended it."""
    Held(12.0, monkeypatch)
    scene.accuse(child)
    with capture_logs() as logs:
        async with running(scene.reactions.run):
            await trio.sleep(12.0)
            assert (child.poll(), scene.reactions._places.total()) == (None, 1)
            await trio.sleep(10.1)  # the next look, and its time to clean up
            assert child.wait(5) == -signal.SIGKILL
    assert scene.deeds == [f"the culprit, pid {child.pid}, was ended by SIGKILL, 5 s after it was known"]
    assert [each["why"] for each in logs if each["event"] == "fault.not_ended"] == [HELD.strerror]
    assert (scene.reactions._unread, scene.reactions._places) == (set(), {})


async def test_one_that_is_held_when_its_time_is_over_is_ended_too(
    scene: Reacting, child: subprocess.Popen, autojump_clock, monkeypatch
) -> None:
    """It counted as another user's by then."""
    scene.accuse(child)
    async with running(scene.reactions.run):
        await trio.sleep(4.0)
        Held(8.0, monkeypatch)
        await trio.sleep(3.0)
        assert child.poll() is None
        await trio.sleep(9.0)
        assert child.wait(5) == -signal.SIGKILL


async def test_one_that_the_stopper_could_not_read_is_stopped_again(
    scene: Reacting, child: subprocess.Popen, autojump_clock
) -> None:
    scene.accuse(child, DomainState.READY)
    scene.stopper.fails = TooMany(f"pid {child.pid} cannot be stopped now")
    async with running(scene.reactions.run):
        await trio.sleep(6.0)
        scene.stopper.fails = None
        await trio.sleep(10.0)
    assert len(scene.stopper.asked) == 2
    assert scene.deeds == [f"the culprit, pid {child.pid}, was ended by sigkill, 5 s after it was known"]


async def test_one_that_the_stopper_could_read_only_at_first_is_ended_when_it_is_let_go(
    scene: Reacting, child: subprocess.Popen, autojump_clock, monkeypatch
) -> None:
    """The stopper's answer was a report like any other, and nothing tried again."""
    held: list[Held] = []

    def hold() -> None:
        held or held.append(Held(trio.current_time() + 1.0, monkeypatch))

    scene.reactions._stopper = Stopper(a_pool(), HeldAfterFind(hold))
    scene.accuse(child, DomainState.READY)
    async with running(scene.reactions.run):
        await trio.sleep(6.0)
        assert (child.poll(), len(held)) == (None, 1)
        await trio.sleep(10.0)
        assert child.wait(5) == -signal.SIGKILL
        await trio.sleep(1.0)
    assert scene.deeds == [f"the culprit, pid {child.pid}, was ended by sigkill, 5 s after it was known"]


async def test_a_client_that_was_held_when_it_had_to_be_frozen_is_frozen_and_ended_when_it_is_let_go(
    scene: Reacting, child: subprocess.Popen, autojump_clock, monkeypatch
) -> None:
    """It counted as frozen, and ran on with zeros for results while its work was ended."""
    process = processes.process_id(child.pid)
    assert process is not None
    place(scene, process)
    Held(4.0, monkeypatch)
    with capture_logs() as logs:
        async with running(scene.reactions.run):
            fault(scene, process)
            await trio.sleep(4.0)
            assert (scene.deeds, processes.state(child.pid) in "RS") == ([], True)
            await trio.sleep(1.5)
            wait_stopped(child.pid)
            await trio.sleep(60)
    assert scene.deeds[0] == f"pid {child.pid}, whose fault was contained, was sent SIGSTOP: it reads zeros"
    assert [each["event"] for each in logs].count("fault.contained") == 1
    assert len(scene.stopper.asked) == 1
