"""The snippets for Slurm and Kubernetes, in cgroups that are named as theirs; no Slurm and no cluster is used."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.machine import ROOT, Machine
from tests.integration.process import is_running
from tests.integration.test_stopping import in_an_endless_kernel, put

pytestmark = pytest.mark.root
EPILOG, PRESTOP = ROOT / "clients/slurm/epilog-snippet", ROOT / "clients/kubernetes/prestop-snippet"
MPSCTL = Path(sys.executable).with_name("mpsctl")
CONTAINER = "0123456789abcdef" * 4


@pytest.fixture
def inner(request: pytest.FixtureRequest, cgroup: Path) -> Path:
    """Make a directory in the cgroup with the name that the test gives."""
    directory = cgroup / request.param
    directory.mkdir()
    return directory


def run(machine: Machine, snippet: Path, inside: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    """As their callers do: with few variables, and in the container where it is for one."""
    place = f"echo $$ > {inside}/cgroup.procs && " if inside else ""
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(machine.pipe), "MPSCTL": str(MPSCTL), **variables}
    words = ["/bin/sh", "-c", f"{place}exec {snippet}"]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("snippet", [EPILOG, PRESTOP], ids=lambda path: path.name)
@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox"])
def test_any_shell_reads_it(snippet: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    words = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    subprocess.run([*words, str(snippet)], check=True)
    assert os.access(snippet, os.X_OK)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["job_4711"], indirect=True)
@pytest.mark.parametrize("how", [{}, {"MPSD_DRAIN": "0.1s", "MPSD_GRACE": "10s"}], ids=["plain", "drain and grace"])
def test_an_epilog_ends_the_clients_of_its_job(machine: Machine, inner: Path, how: dict[str, str]) -> None:
    machine.start()
    other = machine.counter().ready()
    doomed = in_an_endless_kernel(machine)
    put(doomed, inner)
    done = run(machine, EPILOG, SLURM_JOB_ID="471")  # another job
    assert (done.returncode, done.stdout) == (0, "")
    assert is_running(doomed.pid)
    done = run(machine, EPILOG, SLURM_JOB_ID="4711", **how)
    assert (done.returncode, done.stdout) == (0, "")
    assert doomed.status() == (-signal.SIGTERM if how else -signal.SIGKILL)
    other.goes_on()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "1", "MPSCTL": "/nowhere/mpsctl"}, "/nowhere/mpsctl is not there"),
        ({"SLURM_JOB_ID": "1"}, "mpsctl ended with 3"),
    ],
)
def test_an_epilog_never_fails_and_says_what_was_amiss(machine: Machine, variables: dict[str, str], said: str) -> None:
    """mpsd does not run. Slurm drains a node whose Epilog fails."""
    done = run(machine, EPILOG, **variables)
    assert (done.returncode, done.stdout) == (0, "")
    assert said in done.stderr


@pytest.mark.parametrize("inner", [CONTAINER], indirect=True)
def test_a_hook_ends_the_clients_of_its_own_container(machine: Machine, inner: Path) -> None:
    machine.start()
    other = machine.counter().ready()
    doomed = in_an_endless_kernel(machine)
    put(doomed, inner)
    done = run(machine, PRESTOP, inner)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(doomed.pid) in done.stdout
    assert doomed.status() == -signal.SIGKILL
    other.goes_on()


def test_a_hook_in_no_container_stops_nobody_and_fails(machine: Machine) -> None:
    machine.start()
    other = machine.counter().ready()
    done = run(machine, PRESTOP)
    assert done.returncode == 1
    assert "in no container" in done.stderr
    other.goes_on()
