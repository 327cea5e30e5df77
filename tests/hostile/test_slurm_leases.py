"""The leases that Slurm's Prolog and Epilog make and release by the job's name, which others can choose too."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import Lease, calls

from tests.integration.machine import ROOT, Machine

pytestmark = pytest.mark.root
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


class Node:
    """Guards that a test's jobs are its own: their scripts, files and settings."""

    def __init__(self, machine: Machine, place: Path, pipe: Path) -> None:
        self._machine = machine
        self.jobs, self._scripts = place / "jobs", place / "slurm"
        self.jobs.mkdir()
        self._scripts.mkdir()
        for each in ("prolog", "epilog", "epilog-snippet", "functions"):
            (self._scripts / each).symlink_to(ROOT / "clients/slurm" / each)
        settings = f"CUDA_MPS_PIPE_DIRECTORY={pipe}\nMPSD_JOBS={self.jobs}\nMPSCTL={ROOT}/.venv/bin/mpsctl\n"
        (self._scripts / "settings").write_text(f"{settings}PATH={ROOT}/clients/control:$PATH\n")

    def run(self, script: str, job: int) -> None:
        facts = {
            "SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "64321", "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "0",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10", "SLURM_JOB_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1",
        }  # fmt: skip
        subprocess.run([self._scripts / script], env=facts, check=True, timeout=60)

    def leases(self, job: int) -> list[Lease]:
        with self._machine.mpsd() as root:
            return [each for each in root.pages(calls.lease_list()) if each.name == f"slurm-{job}"]

    def clear(self) -> None:
        with self._machine.mpsd() as root:
            for each in root.pages(calls.lease_list()):
                if each.name.startswith("slurm-"):
                    root.ask(calls.lease_release(each.id))


@pytest.fixture
def node(shared: Machine, tmp_path: Path) -> Iterator[Node]:
    link = Path(f"/run/mpsd-slurm-{os.getpid()}")  # Slurm's scripts refuse a pipe directory in a private /tmp
    link.symlink_to(shared.pipe)
    made = Node(shared, tmp_path, link)
    try:
        yield made
    finally:
        made.clear()
        link.unlink()


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
    assert [path.name for path in node.jobs.iterdir() if path.name not in ("lock", "why")] == []
