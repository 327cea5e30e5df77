"""Wrappers and samples that many sites have copied: NERSC's and CSCS's, NVIDIA's own, LSF's, GROMACS-like drivers."""

import pytest

from tests.integration.host import PATIENT, Host
from tests.integration.machine import CLIENTS, PATH, SIMULATOR
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
DRIVER = {"PATH": PATH, "LD_LIBRARY_PATH": str(SIMULATOR / "lib"), "MPSD_SIM_DIR": "/tmp/mpsd-sim-0"}
NERSC = """\
#!/bin/bash
# Example mps-wrapper.sh usage:
# > srun --cpu-bind=socket [srun args] mps-wrapper.sh [cmd] [cmd args]
export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps
export CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-log
if [ $SLURM_LOCALID -eq 0 ]; then
	CUDA_VISIBLE_DEVICES=0 nvidia-cuda-mps-control -d
fi
sleep 1
"$@"
if [ $SLURM_LOCALID -eq 0 ]; then
	echo quit | nvidia-cuda-mps-control
fi
"""


def left(host: Host) -> list[str]:
    return [line for line in host.processes() if "nvidia-cuda-mps" in line and "/bin/sh -c" not in line]


@pytest.mark.slow
def test_the_wrapper_of_nersc_and_cscs_runs_every_rank_under_mps(host: Host) -> None:
    """Rank 0 starts the daemon and quits it when its own part is done; the others may still be at work."""
    host.file("/tmp/mps-wrapper.sh").write_text(NERSC)
    ranks = []
    for rank in range(4):
        seconds = "0.3" if rank == 0 else "1"
        command = f"bash /tmp/mps-wrapper.sh {CLIENTS}/counter --json --seconds {seconds} --kernel-us 3000; echo rc $?"
        environment = DRIVER | {"SLURM_LOCALID": str(rank), "PATH": f"{PATIENT}:{PATH}"}  # the others wait for rank 0's daemon
        ranks.append(host.begin("/bin/sh", "-c", command, environment=environment))
    for output in ranks:
        wait_for("the end of a rank", lambda output=output: "rc 0" in output.read_text(), 20.0)
        assert '"event": "end"' in output.read_text()
    wait_for("the end of MPS", lambda: not left(host))


def test_nvidias_torque_sample_starts_a_server_for_the_jobs_user(host: Host) -> None:
    """Prologue: exclusive GPU, daemon, server of the user.  Epilogue: quit, default mode."""
    prologue = """\
        nvidia-smi -c 3
        USERID=$(id -u $1)
        nvidia-cuda-mps-control -d && echo "MPS control daemon started"
        sleep 1
        echo "start_server -uid $USERID" | nvidia-cuda-mps-control && echo "MPS server started for $1"
    """
    done = host.run("/bin/sh", "-c", prologue, "prologue", "nobody")
    assert done.stdout.splitlines()[-2:] == ["MPS control daemon started", "MPS server started for nobody"]
    assert len(wait_for("the server", lambda: host.ask("get_server_list").split())) == 1
    assert host.client("smcount", uid=65534).wait("sms")["seen"] == 132
    epilogue = "echo quit | nvidia-cuda-mps-control; rc=$?; nvidia-smi -c 0; exit $rc"
    assert host.shell(epilogue).returncode == 0
    assert left(host) == []


def test_nvidias_common_tasks_as_root(host: Host) -> None:
    start = "export CUDA_VISIBLE_DEVICES=0; nvidia-smi -i 0 -c EXCLUSIVE_PROCESS; nvidia-cuda-mps-control -d"
    assert host.shell(start).returncode == 0
    for _ in range(3):
        assert host.client("smcount").status() == 0
    assert host.shell("echo quit | nvidia-cuda-mps-control; nvidia-smi -i 0 -c DEFAULT").returncode == 0
    assert left(host) == []


def test_lsf_names_a_directory_below_the_jobs_own_and_removes_it_at_the_end(host: Host) -> None:
    """Instead of CUDA_VISIBLE_DEVICES; per job, with several jobs on one machine."""
    jobs = []
    for job in (101, 102):
        place = f"/tmp/{job}.tmpdir/lsf_mps"
        environment = {"CUDA_MPS_PIPE_DIRECTORY": place, "CUDA_MPS_LOG_DIRECTORY": place, "PATH": PATH}
        host.run("mkdir", "-p", place)
        assert host.shell("nvidia-cuda-mps-control -d", environment=environment).returncode == 0
        jobs.append((place, environment))
    for place, environment in jobs:
        assert host.client("smcount", CUDA_MPS_PIPE_DIRECTORY=place).status() == 0
        assert len(wait_for("a server", lambda env=environment: host.ask("get_server_list", environment=env).split())) == 1
    for place, environment in jobs:
        assert host.shell("echo quit | nvidia-cuda-mps-control", environment=environment).returncode == 0
        assert host.run("rm", "-r", place).returncode == 0
    assert left(host) == []


def test_a_hook_that_looks_for_a_server_of_its_user(host: Host) -> None:
    """sarus-suite's mps_hook: is there a server of this uid, else start one."""
    host.run("nvidia-cuda-mps-control", "-d")
    look = "for p in $(echo get_server_list | nvidia-cuda-mps-control); do stat -c %u /proc/$p; done"
    assert host.shell(look).stdout == ""
    host.shell("echo start_server -uid 1000 | nvidia-cuda-mps-control")
    wait_for("the server", lambda: host.shell(look).stdout == "1000\n")
    assert host.client("smcount", uid=1000).status() == 0


def test_a_plugin_that_looks_for_the_socket(host: Host) -> None:
    """Nomad's: the file `control` in the pipe directory; pods mount that directory as it is."""
    host.run("nvidia-cuda-mps-control", "-d")
    assert host.run("test", "-S", "/tmp/nvidia-mps/control").returncode == 0
    assert host.run("test", "-S", "/tmp/nvidia-mps/control", uid=1000).returncode == 0
    host.shell("mkdir /mnt/pod && mount --bind /tmp/nvidia-mps /mnt/pod")
    assert host.client("smcount", uid=1000, CUDA_MPS_PIPE_DIRECTORY="/mnt/pod").status() == 0
