"""A user holds the lock of a client's directory below /proc, and another one ends the client, or the job that it is in."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mpsd.app.wire_services import _ending
from mpsd.errors import NoSuchClient, TooMany
from mpsd.host import process_reader, processes
from mpsd.host.inspector import Inspector
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import ProcessId
from mpsd.model.stop import Asker, Manner, Target, TargetKind
from mpsd.stop.stopper import Stopper
from mpsd.stop.targets import Targets
from tests.cgroup_files import CgroupFiles
from tests.held_directory import held
from tests.unit.host.test_held_processes import OTHER, USER, fresh_readers, make_wait, sleeping
from tests.unit.stop.test_targets import HERE, a_pool, files, inspector

__all__ = ["files", "fresh_readers", "inspector"]  # fixtures
pytestmark = pytest.mark.root
ROOT, OWN, NONE = (Asker(uid, os.getpid()) for uid in (None, USER, OTHER))
INSIDE = Asker(USER, os.getpid(), processes.pid_namespaces(os.getpid())[0])  # as if this namespace were a container's


class Job:
    """Two clients of a user, in a cgroup.  One is held."""

    def __init__(self, held: ProcessId, other: ProcessId, inspector: Inspector) -> None:
        self.held, self.other = held, other
        self.stopper = Stopper(a_pool(), Targets(a_pool(), inspector, lambda: (held, other)))


@pytest.fixture(params=["first", "second"])
def job(
    request: pytest.FixtureRequest, files: CgroupFiles, inspector: Inspector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Job]:
    monkeypatch.setattr(process_reader, "UNREAD_SECONDS", 0.5)
    with ExitStack() as stack:
        pids = sorted(stack.enter_context(sleeping(USER, USER, USER)) for _ in range(2))
        first, second = [found for pid in pids if (found := processes.process_id(pid))]
        for pid in (first.pid, second.pid, os.getpid()):
            files.put(pid, "/batch")
        one, other = (first, second) if request.param == "first" else (second, first)
        stack.enter_context(held(f"/proc/{one.pid}", tmp_path / "mount"))
        make_wait(one.pid)
        yield Job(one, other, inspector)


@pytest.mark.parametrize("asker", [ROOT, OWN, INSIDE], ids=["an operator", "their user", "one in their container"])
async def test_of_a_job_all_but_a_held_client_are_ended(job: Job, asker: Asker) -> None:
    """An operator's stop ended no client of the job, and its user's counted all as other users', with exit status 0."""
    report = await job.stopper.stop(HERE, Manner(), asker)
    ended, left = report.stopped
    assert (ended.process, ended.why, report.others) == (job.other, "", 0)
    assert left.process == job.held
    assert "be stopped now" in left.why or "its user could not be read" in left.why


async def test_a_held_client_of_another_user_counts_as_one(job: Job) -> None:
    report = await job.stopper.stop(HERE, Manner(), NONE)
    assert (report.stopped, report.others) == ([], 2)


async def test_a_held_process_is_refused_by_its_pid(job: Job) -> None:
    """mpsd answered that it does not exist, and a failover of root's service took it as ended."""
    target = Target(TargetKind.PID, str(job.held.pid))
    for asker in (ROOT, OWN):
        with pytest.raises(TooMany, match=f"pid {job.held.pid} cannot be stopped now"):
            await job.stopper.stop(target, Manner(force=True), asker)
    with pytest.raises(NoSuchClient):
        await job.stopper.stop(target, Manner(), NONE)
    for uid in (0, USER):
        with pytest.raises(TooMany):
            await _ending(job.stopper, a_pool())(job.held, uid)
    with pytest.raises(Unanswered):
        processes.process_id(job.held.pid)
