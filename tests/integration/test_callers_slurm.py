"""Slurm's prolog for MPS, as its documentation has it: `ps aux | grep`, `quit`, and a command given as arguments."""

import pytest

from tests.integration.host import Host
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
JOB_UID = 1000
PROLOG = """\
MPS_CMD_DIR=/usr/bin/
export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps_${CUDA_VISIBLE_DEVICES}
export CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-log_${CUDA_VISIBLE_DEVICES}
ps aux | grep nvidia-cuda-mps-control | grep -v grep > /dev/null
if [ $? -eq 0 ]; then
	echo "MPS is running"
	nvidia-smi -c ${CUDA_VISIBLE_DEVICES}
	echo quit | ${MPS_CMD_DIR}nvidia-cuda-mps-control
	ps aux | grep nvidia-cuda-mps | grep -v grep
	if [ $? -eq 0 ]; then
		echo "MPS processes left: node DOWN"
		exit 1
	fi
fi
mkdir -p $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY
${MPS_CMD_DIR}nvidia-cuda-mps-control -d && echo "MPS control daemon started"
sleep 1
${MPS_CMD_DIR}nvidia-cuda-mps-control start_server -uid $SLURM_JOB_UID && echo "MPS server started for $SLURM_JOB_UID"
"""
DIRECTORIES = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps_0", "CUDA_MPS_LOG_DIRECTORY": "/tmp/nvidia-log_0"}


def prolog(host: Host, uid: int = JOB_UID) -> list[str]:
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_UID": str(uid)}
    done = host.shell(PROLOG, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def shown(host: Host) -> list[str]:
    """What the prolog's grep finds; that has ended and was not collected, too."""
    return [line for line in host.processes() if "nvidia-cuda-mps" in line]


def test_the_prolog_starts_a_server_for_the_jobs_user(host: Host) -> None:
    """Driver 580 takes no command from its arguments: the sample has never started a server.  Here it does."""
    assert prolog(host) == ["MPS control daemon started", f"MPS server started for {JOB_UID}"]

    def servers() -> list[str]:
        return host.ask("get_server_list", environment=DIRECTORIES).split()

    [server] = wait_for("the server", servers)

    def is_the_jobs_users() -> bool:  # it is listed before it has changed its user
        return host.run("stat", "-c", "%u", f"/proc/{server}").stdout.strip() == str(JOB_UID)

    wait_for("its user", is_the_jobs_users)
    job = host.client("smcount", uid=JOB_UID, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50", **DIRECTORIES)
    assert job.wait("sms")["seen"] == 66
    assert servers() == [server]


def test_the_next_jobs_prolog_finds_it_ends_it_and_starts_anew(host: Host) -> None:
    """A process that is left after `quit`, dead or alive, takes the node down."""
    prolog(host)
    host.client("smcount", uid=JOB_UID, **DIRECTORIES).wait("sms")
    assert prolog(host, JOB_UID + 1) == [
        "MPS is running",
        "MPS control daemon started",
        f"MPS server started for {JOB_UID + 1}",
    ]
    host.client("smcount", uid=JOB_UID + 1, **DIRECTORIES).wait("sms")


def test_ps_shows_the_daemon_while_it_runs_and_nothing_after_quit(host: Host) -> None:
    assert shown(host) == []
    prolog(host)
    job = host.counter(uid=JOB_UID, **DIRECTORIES)
    job.ready()
    assert any("nvidia-cuda-mps-control" in line for line in shown(host))
    wait_for("a spare as well", lambda: len([line for line in shown(host) if "nvidia-cuda-mps-server" in line]) > 1)
    host.end(job)
    assert host.ask("quit", environment=DIRECTORIES) == ""
    assert shown(host) == []


def test_two_users_jobs_do_not_wait_for_each_other(host: Host) -> None:
    """Slurm's documentation warns that MPS serialises users."""
    prolog(host)
    first = host.counter(uid=JOB_UID, **DIRECTORIES).ready()
    second = host.counter(uid=JOB_UID + 1, **DIRECTORIES).ready(5.0)
    first.goes_on()
    second.goes_on()
