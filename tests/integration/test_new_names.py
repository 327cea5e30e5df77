"""A culprit that comes back under a new job number, container id or program name: how often it is placed with its neighbour.

The cgroups have the names that Slurm and containerd give them; neither was run.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.machine import CLIENTS, UIDS, Machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
SETTINGS = "[faults]\nculprit_seconds = 0.0\ncrash_pause_max = 0.0\n"


@contextmanager
def inside(directory: Path) -> Iterator[None]:
    """Be in the cgroup for as long, so that programs are started in it."""
    directory.mkdir(parents=True)
    home = directory.parents[len(directory.parts) - 1 - len(Path("/sys/fs/cgroup/unified").parts)]
    (directory / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))


def together(machine: Machine, times: int, start: Callable[[int], object], uid: int | None = None) -> list[bool]:
    """Return, for each start of the culprit, whether it faulted in its neighbour's domain. The neighbour is restarted each
    time."""
    found = []
    for number in range(times):
        neighbour = machine.counter(uid).ready()
        domain = machine.domain_of(neighbour)
        before = len(machine.journal("fault.settled"))
        start(number)
        wait_for(f"fault {number} to be settled", lambda before=before: len(machine.journal("fault.settled")) > before)
        found.append(machine.journal("fault.opened")[-1]["domain"] == domain)
        neighbour.end()
    return found


def test_a_job_that_is_submitted_again_is_recognised_by_its_name(machine: Machine, cgroup: Path) -> None:
    machine.configure(SETTINGS)
    machine.start()

    def submit(number: int) -> None:
        with inside(cgroup / f"slurm_node/uid_0/job_{41 + number}/step_batch"):
            machine.client("faulter", "oob_write", SLURM_JOB_NAME="train").ready()

    assert together(machine, 3, submit) == [True, False, False]
    with machine.mpsd() as mpsd:
        assert [row.key for row in mpsd.ask(calls.blame_list()).items] == ["job:train:faulter:0"]


def test_a_container_that_is_made_again_is_recognised_at_the_third_time(machine: Machine, cgroup: Path) -> None:
    machine.configure(SETTINGS)
    machine.start()

    def make(number: int) -> None:
        with inside(cgroup / f"cri-containerd-{number:064x}.scope"):
            machine.client("faulter", "oob_write").ready()

    assert together(machine, 3, make) == [True, True, False]


def test_a_pod_is_recognised_when_its_container_is_made_again(machine: Machine, cgroup: Path) -> None:
    machine.configure(SETTINGS)
    machine.start()
    pod = cgroup / "kubepods/besteffort/pod57e67067-89e4-4001-bdd4-8632d39ea02b"

    def restart(number: int) -> None:
        with inside(pod / f"{number:064x}"):
            machine.client("faulter", "oob_write").ready()

    assert together(machine, 3, restart) == [True, False, False]


def test_a_program_that_is_renamed_is_recognised_by_its_user(machine: Machine) -> None:
    """Where users share domains, it harms those of others."""
    machine.configure(SETTINGS)
    machine.start("-multiuser-server")

    def copy(number: int) -> None:
        renamed = machine.place / f"program{number}"
        shutil.copy(CLIENTS / "faulter", renamed)
        machine.client(str(renamed), "oob_write", uid=UIDS[1]).ready()

    assert together(machine, 5, copy, UIDS[0]) == [True, True, True, False, False]
    with machine.mpsd() as mpsd:
        assert f"user:{UIDS[1]}" in {row.key for row in mpsd.ask(calls.blame_list()).items}
        mpsd.ask(calls.blame_pardon(f"user:{UIDS[1]}"))
        assert not mpsd.ask(calls.blame_list()).items
