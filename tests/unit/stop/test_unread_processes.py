"""A process that mpsd finds, and cannot read any more when it is to be ended: a user holds its /proc from that moment on."""

import errno
import os
import subprocess

import pytest

from mpsd.domains.domain import Domain
from mpsd.errors import TooMany, VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId
from mpsd.model.stop import Asker, Manner, Target, TargetKind
from mpsd.stop import steps, targets
from mpsd.stop.stopper import Stopper
from mpsd.stop.targets import Found, Targets
from tests.inspecting import INSPECTOR
from tests.leaderless import crowded
from tests.unit.stop.test_targets import a_pool

HELD = OSError(errno.EBUSY, "held")
Patch = pytest.MonkeyPatch


class Control:
    silence_seconds = 1.0


class HeldAfterFind(Targets):
    """Lets `hold` happen between the first look at a process and the next one."""

    def __init__(self, hold) -> None:
        super().__init__(a_pool(), INSPECTOR, tuple)
        self._hold = hold

    async def find(self, target: Target, asker: Asker) -> Found:
        found = await super().find(target, asker)
        self._hold()
        return found


class AtWork(Stopper):
    """Every process has work on a server."""

    def _servers(self, process: ProcessId, silent: set[str]) -> steps.Servers:
        return [(Domain("d1", 1, ("GPU-a",), Control(), 48, state=DomainState.READY), 1)]  # type: ignore[arg-type]


async def refuse(*_: object) -> str:
    raise VendorFailed("mpsd cannot read now whether it is stopped: try again")


def no_pidfd(patch: Patch) -> None:
    def fail(process: ProcessId) -> int:
        raise HELD

    patch.setattr(processes, "open_pidfd", fail)


def no_user(patch: Patch) -> None:
    patch.setattr(targets, "is_ones_own", lambda asker, pid: None)


def no_state(patch: Patch) -> None:
    patch.setattr(processes, "state", lambda pid: "?")
    patch.setattr(processes, "read_stat", lambda pid: None)
    patch.setattr(steps, "terminate_client", refuse)


@pytest.mark.parametrize("hold", [no_pidfd, no_user, no_state])
async def test_a_process_that_became_unread_is_refused_so_that_the_caller_tries_again(
    child: subprocess.Popen, monkeypatch: Patch, hold
) -> None:
    """The answer was that it had been left: mpsd itself, which ends culprits of faults, did not try again."""
    stopper = AtWork(a_pool(), HeldAfterFind(lambda: hold(monkeypatch)))
    with pytest.raises(TooMany, match=f"pid {child.pid}"):
        await stopper.stop(Target(TargetKind.PID, str(child.pid)), Manner(), Asker(None, os.getpid()))
    assert child.poll() is None


async def test_one_whose_work_was_not_ended_is_left(child: subprocess.Popen, monkeypatch: Patch) -> None:
    monkeypatch.setattr(steps, "terminate_client", refuse)
    target = Target(TargetKind.PID, str(child.pid))
    report = await AtWork(a_pool(), HeldAfterFind(lambda: None)).stop(target, Manner(), Asker(None, os.getpid()))
    assert [each.has_ended for each in report.stopped] == [False]


async def test_one_whose_state_stays_unknown_is_left(monkeypatch: Patch) -> None:
    """Its threads do not show it, and will not: the caller was to try again for as long as its domain was silent."""
    monkeypatch.setattr(steps, "terminate_client", refuse)
    with crowded(40) as pid:
        assert processes.state(pid) == "?"
        target = Target(TargetKind.PID, str(pid))
        report = await AtWork(a_pool(), HeldAfterFind(lambda: None)).stop(target, Manner(), Asker(None, os.getpid()))
        assert [each.has_ended for each in report.stopped] == [False]
