"""NVIDIA's Kubernetes device plugin in MPS mode: what it runs, in its order and with its environment."""

import subprocess

import pytest

from tests.integration.host import Host
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
CONTROL = "/usr/bin/nvidia-cuda-mps-control"
PLACE = "/run/nvidia/mps/nvidia.com/gpu"
ENVIRONMENT = {"CUDA_MPS_PIPE_DIRECTORY": f"{PLACE}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{PLACE}/log"}  # and no other
REPLICAS = 4


def echo_pipe_to_control(host: Host, command: str) -> str:
    """EchoPipeToControl: no newline; a status that is not 0 is an error, standard error is not looked at."""
    done = host.run(CONTROL, environment=ENVIRONMENT, typed=command)
    assert done.returncode == 0, f"{command}: {done}"
    return done.stdout


def start(host: Host) -> "subprocess.CompletedProcess[str]":
    host.run("mkdir", "-p", "-m", "755", *ENVIRONMENT.values())
    return host.run(CONTROL, "-d", environment=ENVIRONMENT)


def test_the_plugins_whole_life(host: Host) -> None:
    """Start, limits, health, clients, stop, with the GPU in EXCLUSIVE_PROCESS mode."""
    assert host.run("nvidia-smi", "-i", "0", "-c", "EXCLUSIVE_PROCESS").returncode == 0
    done = start(host)
    assert (done.returncode, done.stdout) == (0, "")
    echo_pipe_to_control(host, f"set_default_device_pinned_mem_limit 0 {143771 // REPLICAS}M")
    echo_pipe_to_control(host, f"set_default_active_thread_percentage {100 // REPLICAS}")
    host.run("touch", f"{PLACE}/.started")
    tail = host.begin("tail", "-n", "+1", "-f", f"{PLACE}/log/control.log")
    assert echo_pipe_to_control(host, "get_default_active_thread_percentage") == "25.0\n"

    pods = [host.client("smcount", **ENVIRONMENT) for _ in range(REPLICAS)]
    assert [pod.wait("sms")["seen"] for pod in pods] == [32] * REPLICAS
    greedy = host.client("memlimit", "40000", **ENVIRONMENT)
    assert greedy.error() == 2

    assert echo_pipe_to_control(host, "quit") == ""
    wait_for("tail to follow", lambda: "NEW CLIENT" in tail.read_text())
    assert "Starting control daemon using socket" in tail.read_text().splitlines()[0]
    assert host.run("rm", "-r", f"{PLACE}/log").returncode == 0
    assert host.run("nvidia-smi", "-i", "0", "-c", "DEFAULT").returncode == 0


def test_a_restart_of_the_plugin_stops_and_starts_it(host: Host) -> None:
    """SIGHUP: Stop() and Start() at once, one after the other."""
    for _ in range(3):
        assert start(host).returncode == 0
        echo_pipe_to_control(host, "set_default_active_thread_percentage 10")
        echo_pipe_to_control(host, "quit")
        host.run("rm", "-r", f"{PLACE}/log")


def test_a_plugin_that_died_without_stop_finds_the_daemon_in_its_way(host: Host) -> None:
    """`-d` fails as the vendor's does; quit, and the retry after 30 seconds, mend it."""
    assert start(host).returncode == 0
    second = start(host)
    assert (second.returncode, second.stdout) == (1, "An instance of this daemon is already running\n")
    echo_pipe_to_control(host, "quit")
    assert start(host).returncode == 0


def test_a_start_that_fails_is_retried_with_success_once_the_cause_is_gone(host: Host) -> None:
    """No GPU at first: a status that is not 0, a reason, and nothing left behind that is in the way."""
    host.run("mkdir", "-p", "-m", "755", *ENVIRONMENT.values())
    failed = host.run(CONTROL, "-d", environment={**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "7"})
    assert failed.returncode == 100
    assert failed.stdout.startswith("no visible device")
    wait_for("its end", lambda: not [line for line in host.processes() if "nvidia-cuda-mps" in line])
    assert start(host).returncode == 0
    host.client("smcount", **ENVIRONMENT).wait("sms")


def test_a_container_with_its_own_shm_is_a_client(host: Host) -> None:
    """The plugin mounts a tmpfs over /dev/shm in daemon and clients."""
    host.run("mkdir", "-p", "/run/nvidia/mps/shm")
    host.shell("mount -t tmpfs -o size=64m shm /run/nvidia/mps/shm && mount --bind /run/nvidia/mps/shm /dev/shm")
    assert start(host).returncode == 0
    assert host.client("smcount", **ENVIRONMENT).status() == 0
