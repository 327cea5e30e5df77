"""What Slurm's TaskProlog makes of the file that the Prolog leaves: no lease, no task."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "clients/slurm"
GRANTED = "processes 2\nexport CUDA_MPS_PIPE_DIRECTORY={pipe}\nexport MPSD_LEASE=0123\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The scripts, with an mpsd that answers."""
    for name in ("task-prolog", "functions"):
        shutil.copy(SCRIPTS / name, tmp_path / name)
    for name in ("jobs/7.d", "pipe", "bin"):
        (tmp_path / name).mkdir(parents=True)
    control = tmp_path / "bin/nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nexit 0\n")
    control.chmod(0o755)
    settings = f"PATH={tmp_path}/bin:$PATH\nMPSD_JOBS={tmp_path}/jobs\nCUDA_MPS_PIPE_DIRECTORY={tmp_path}/pipe\n"
    (tmp_path / "settings").write_text(settings)
    return tmp_path


def prolog(place: Path, task: str = "0") -> "subprocess.CompletedProcess[str]":
    job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node", "SLURM_LOCALID": task, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    words, environment = ["/bin/sh", str(place / "task-prolog")], {"PATH": os.environ["PATH"], **job}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20, check=False)


def test_a_task_gets_its_lease(place: Path) -> None:
    granted = GRANTED.format(pipe=place / "pipe")
    (place / "jobs/7.d/ticket").write_text(granted)
    done = prolog(place)
    assert (done.returncode, done.stdout, done.stderr) == (0, granted.partition("\n")[2], "")
    done = prolog(place, task="2")
    assert done.returncode == 1
    assert "more tasks on this node" in done.stdout


@pytest.mark.parametrize("ticket", ["", "proc", "processes", "processes \n", "processes two\nexport MPSD_LEASE=0123\n"])
def test_a_prolog_that_was_cut_off_gives_no_task_without_limits(place: Path, ticket: str) -> None:
    """A requeued job's file is its user's already, and so can be read when only a part of it is there."""
    (place / "jobs/7.d/ticket").write_text(ticket)
    done = prolog(place)
    assert done.returncode == 1
    assert done.stdout.startswith("print mpsd: job 7 may not start on node: ")
