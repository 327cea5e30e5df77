"""The leases that Slurm's Prolog and Epilog make and release by the job's name, which others can choose too."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import Lease, Selector, calls

from tests.integration.machine import ROOT, Machine
from tests.integration.process import variable, wait_for

pytestmark = pytest.mark.root
JOBS_USER = 64321
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c")
# Makes leases of that name, and releases the later half, from the end, when the first of them is gone.
ATTACK = """
import sys
from mpsd_client import Client, Refused, Selector, calls
with Client(sys.argv[1]) as mpsd:
    tokens = [Selector.of_token(f"the-token-of-an-attacker-{number}") for number in range(40)]
    own = [mpsd.ask(calls.lease_create(sys.argv[2], token, memory_bytes={"0": 2 << 20})).id for token in tokens]
    print("ready", flush=True)
    try:
        while True:
            mpsd.ask(calls.lease_get(own[0]))
    except Refused:
        pass
    for each in reversed(own[20:]):
        try:
            mpsd.ask(calls.lease_release(each))
        except Refused:
            pass
print("done", flush=True)
"""
# mpsctl, whose `lease release` begins late for job 6, as on a busy machine.  While the file `refuse` is there it fails as
# if mpsd could not read it, and notes that there.
SLOW = """\
#!/bin/sh
if [ "$SLURM_JOB_ID $2" = "6 release" ]; then
	touch {place}/began
	while [ ! -e {place}/go ]; do sleep 0.05; done
fi
if [ "$2" = release ] && [ -e {place}/refuse ]; then
	echo "$3" >>{place}/refuse
	echo "mpsctl lease release: mpsd closed the connection: TOO_MANY: mpsd cannot tell who asks: it is not read" >&2
	exit 3
fi
exec {root}/.venv/bin/mpsctl "$@"
"""


class Node:
    """Guards that a test's jobs are its own: their scripts, files and settings."""

    def __init__(self, machine: Machine, place: Path, pipe: Path, **more: str) -> None:
        """more: settings."""
        self._machine = machine
        self.place, self.jobs, self._scripts = place, place / "jobs", place / "slurm"
        self.jobs.mkdir()
        self._scripts.mkdir()
        for each in ("prolog", "epilog", "epilog-snippet", "functions"):
            (self._scripts / each).symlink_to(ROOT / "clients/slurm" / each)
        mpsctl = place / "mpsctl"
        mpsctl.write_text(SLOW.format(place=place, root=ROOT))
        mpsctl.chmod(0o755)
        settings = {**machine.variables, "CUDA_MPS_PIPE_DIRECTORY": pipe, "MPSD_JOBS": self.jobs, "MPSCTL": mpsctl,
                    "MPSD_ASK_SECONDS": 30, **more}  # fmt: skip
        settings["PATH"] = f"{ROOT}/clients/control:$PATH"
        (self._scripts / "settings").write_text("".join(f"export {name}={value}\n" for name, value in settings.items()))

    def begin(self, script: str, job: int, gpu: int = 0) -> "subprocess.Popen[bytes]":
        facts = {
            "SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(JOBS_USER), "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": str(gpu),
            "CUDA_VISIBLE_DEVICES": str(gpu), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
            "SLURM_JOB_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1",
        }  # fmt: skip
        return subprocess.Popen([self._scripts / script], env=facts)

    def run(self, script: str, job: int, gpu: int = 0) -> None:
        assert self.begin(script, job, gpu).wait(60) == 0

    def leases(self, job: int) -> list[Lease]:
        with self._machine.mpsd() as root:
            return [each for each in root.pages(calls.lease_list()) if each.name == f"slurm-{job}"]

    def ticket(self, job: int) -> Path:
        return self.jobs / f"{job}.d/ticket"

    def wait_until_nothing_is_left(self) -> None:
        """The Epilog does not wait until the ticket has gone."""
        wait_for("the jobs' files to go", lambda: {path.name for path in self.jobs.iterdir()} <= {"lock", "why"})

    def token(self, job: int) -> str:
        return next(line for line in self.ticket(job).read_text().splitlines() if "MPSD_LEASE" in line).partition("=")[2]

    def lock_is_waited_for(self) -> bool:
        inode = (self.jobs / "lock").stat().st_ino
        return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())

    def clear(self) -> None:
        with self._machine.mpsd() as root:
            for each in root.pages(calls.lease_list()):
                if each.name.startswith("slurm-"):
                    root.ask(calls.lease_release(each.id))


@contextmanager
def pipe_below_run(machine: Machine) -> Iterator[Path]:
    link = Path(f"/run/mpsd-slurm-{os.getpid()}")  # Slurm's scripts refuse a pipe directory in a private /tmp
    link.symlink_to(machine.pipe)
    try:
        yield link
    finally:
        link.unlink()


@pytest.fixture
def node(shared: Machine, tmp_path: Path) -> Iterator[Node]:
    with pipe_below_run(shared) as pipe:
        made = Node(shared, tmp_path, pipe)
        try:
            yield made
        finally:
            made.clear()


def test_leases_of_a_containers_root_do_not_keep_that_of_a_job(shared: Machine, node: Node) -> None:
    """The container's root has root's uid, so that the Epilog releases its leases too, before the job's.  When one of them had
    ended, the Epilog took the job's for ended too, and the job's part of the GPU was lost."""
    words = [*CONTAINER, ATTACK, str(shared.pipe / "mpsd.sock"), "slurm-5"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "ready\n"
            node.run("prolog", 5)
            assert [each.sm_percent for each in node.leases(5) if each.for_all_users] == [10]
            node.run("epilog", 5)
            assert attacker.stdout.readline() == "done\n"
        finally:
            attacker.kill()
    assert node.leases(5) == []
    node.wait_until_nothing_is_left()


def test_the_new_lease_of_a_requeued_job_is_not_taken_for_its_old_one(shared: Machine, node: Node) -> None:
    """Another job's Prolog had found what the job left, and released by its name when the job had a lease again."""
    with shared.mpsd() as root:
        root.ask(calls.lease_create("slurm-5", Selector.of_token("the-old-token-of-job-5"), sm_percent=10))
    (node.jobs / "5.left").touch()
    other = node.begin("prolog", 6)
    wait_for("job 6's Prolog to find what job 5 left", lambda: (node.place / "began").exists())
    requeued = node.begin("prolog", 5)
    wait_for("job 5's Prolog to wait or to end", lambda: node.lock_is_waited_for() or requeued.poll() is not None)
    (node.place / "go").touch()
    assert (other.wait(60), requeued.wait(60)) == (0, 0)
    assert [each.selector.value for each in node.leases(5)] == [node.token(5)]
    assert [path.name for path in node.jobs.iterdir() if path.suffix == ".left"] == []


def test_what_a_job_left_is_its_own_again_when_it_is_requeued(shared: Machine, node: Node) -> None:
    """The old lease stays, as mpsd does not answer for a moment; the next job's Prolog released the new one too."""
    (node.jobs / "5.left").touch()
    (node.place / "refuse").touch()
    node.run("prolog", 5)
    (node.place / "refuse").unlink()
    [lease] = node.leases(5)
    node.run("prolog", 7)
    assert node.leases(5) == [lease]
    node.run("epilog", 5)
    assert node.leases(5) == []


def test_an_mpsctl_that_does_not_end_keeps_no_prolog_waiting(shared: Machine, tmp_path: Path) -> None:
    """It runs under the lock of all Prologs of the node."""
    with pipe_below_run(shared) as pipe:
        node = Node(shared, tmp_path, pipe, MPSD_ASK_SECONDS="2")
        for job in (1, 2, 3, 4, 5):
            (node.jobs / f"{job}.left").touch()
        try:
            node.run("prolog", 6)
            assert len(node.leases(6)) == 1
            assert {f"{job}.left" for job in (1, 2, 3, 4, 5)} <= {path.name for path in node.jobs.iterdir()}
        finally:
            (node.place / "go").touch()
            node.clear()


def test_an_mpsd_that_cannot_tell_who_asks_is_asked_for_one_lease_only(node: Node) -> None:
    """Each refusal takes 6 s.  The Prolog asked for every lease that was left, while other Prologs wait 60 s for its lock."""
    for job in (1, 2, 3):
        (node.jobs / f"{job}.left").touch()
    (node.place / "refuse").touch()
    node.run("prolog", 5)
    assert (node.place / "refuse").read_text() == "slurm-1\n"
    assert {f"{job}.left" for job in (1, 2, 3)} <= {path.name for path in node.jobs.iterdir()}
    assert len(node.leases(5)) == 1


def test_the_mpsd_that_the_first_jobs_prolog_starts_serves_the_jobs_of_all_gpus(machine: Machine, tmp_path: Path) -> None:
    """It took the GPU of the first job, from that Prolog's environment, for its only one, and numbered it 0."""
    with pipe_below_run(machine) as pipe:
        node = Node(machine, tmp_path, pipe, MPSD_SIM_GPUS="2")
        node.run("prolog", 5, gpu=1)
        node.run("prolog", 6, gpu=0)
        leased = [lease.gpus for job in (5, 6) for lease in node.leases(job)]
        first, second = machine.uuids(MPSD_SIM_GPUS="2")
        assert leased == [(second,), (first,)], [node.ticket(job).read_text() for job in (5, 6)]
        assert variable(machine.daemon_pid(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == "", "every client would be limited to it"


def test_a_full_file_system_keeps_no_lease(node: Node) -> None:
    """The Prolog could not make the mark, and made the lease all the same: no script released it."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=16", "none", node.jobs], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        node.run("prolog", 4)
        fillers = (node.jobs / f"filler-{number}" for number in range(16))
        with pytest.raises(OSError, match="No space left"):
            list(map(Path.touch, fillers))
        node.run("prolog", 5)
        assert not node.ticket(5).exists(), "task-prolog refuses without it"
        for each in node.jobs.glob("filler-*"):
            each.unlink()
        for job in (4, 5):
            node.run("epilog", job)
            assert node.leases(job) == []
        node.wait_until_nothing_is_left()
    finally:
        subprocess.run(["umount", "--lazy", node.jobs], check=True)


def test_no_user_can_keep_the_jobs_directory_locked(machine: Machine, tmp_path: Path) -> None:
    """Who may list a directory, or read a file, can keep it locked in the kernel: each Prolog then waited in state D."""
    with pipe_below_run(machine) as pipe:
        node = Node(machine, tmp_path, pipe)
        node.jobs.chmod(0o755)
        node.run("prolog", 5)
        modes = {path.name: path.stat().st_mode & 0o777 for path in (node.jobs, *node.jobs.iterdir())}
        assert modes == {"jobs": 0o711, "lock": 0o600, "why": 0o600, "5": 0o600, "5.d": 0o711}
        assert node.ticket(5).stat().st_mode & 0o777 == 0o600
