"""Amazon ECS: the agent's health probe, which times out after three seconds, and the service of its machine image."""

import os
import signal

import pytest

from tests.integration.host import Host
from tests.integration.machine import Machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
CONTROL = "/usr/bin/nvidia-cuda-mps-control"
PROBE_SECONDS = 3.0


def probe(machine: Machine) -> int:
    """0: serving.  1: no daemon.  No answer in time: wedged, and that raises."""
    assert machine.pipe.is_dir()
    return machine.run(typed="get_default_active_thread_percentage\n", seconds=PROBE_SECONDS).returncode


def test_the_probe_tells_serving_from_absent(machine: Machine) -> None:
    assert probe(machine) == 1
    machine.start()
    assert probe(machine) == 0
    machine.quit()
    assert probe(machine) == 1


@pytest.mark.parametrize("spares", [0, 1])
def test_the_probe_is_answered_while_a_vendor_daemon_hangs(machine: Machine, spares: int) -> None:
    """Also when it is the only one, and while clients wait for it."""
    machine.configure(f"[domains]\nspares = {spares}\nmax_domains = {spares + 1}\n")
    machine.start()
    machine.counter().ready()
    os.kill(machine.vendor_pid("default"), signal.SIGSTOP)
    machine.counter()
    machine.client("smcount")
    assert [probe(machine) for _ in range(5)] == [0] * 5


def test_the_probe_is_answered_while_a_server_starts_and_while_it_quits(machine: Machine) -> None:
    machine.start(MPSD_SIM_FAST="0")
    client = machine.counter()
    assert [probe(machine) for _ in range(5)] == [0] * 5
    client.ready()
    machine.begin(typed="quit\n")
    machine.wait_for_journal("quit.begins")
    assert probe(machine) == 0


def test_the_probe_is_answered_under_a_storm_of_other_questions(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    storm = [machine.begin(typed="ps\nget_server_list\ndevice_query\n" * 30) for _ in range(6)]
    assert [probe(machine) for _ in range(5)] == [0] * 5
    for process in storm:
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, b"")
        assert out


def test_the_probe_finds_no_daemon_while_mpsd_is_dead(machine: Machine) -> None:
    """Three such answers make the instance IMPAIRED; systemd has it back after one second."""
    machine.start()
    machine.kill_daemon()
    assert probe(machine) == 1
    machine.start()
    assert probe(machine) == 0


def start_service(host: Host) -> int:
    """ExecStart of the service, Type=exec: in the foreground; mpsd's pid in there."""
    host.begin(CONTROL, "-f", "-multiuser-server")
    file = host.file("/tmp/nvidia-mps/nvidia-cuda-mps-control.pid")
    wait_for("the service", lambda: host.run(CONTROL, typed="get_server_list\n").returncode == 0, 20.0)
    return int(file.read_text())


def test_the_service_runs_in_the_foreground_and_all_users_share_a_server(host: Host) -> None:
    pid = start_service(host)
    assert host.run("cat", f"/proc/{pid}/comm").returncode == 0
    limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    for uid in (0, 1000, 1001):
        assert host.client("smcount", uid=uid, **limits).wait("sms")["seen"] == 66
        assert host.client("memlimit", "2048", uid=uid, **limits).error() == 2
    wait_for("one server in the list", lambda: len(host.ask("get_server_list").split()) == 1)


def test_the_service_is_restarted_under_running_containers(host: Host) -> None:
    """Restart=always: `kill -9`, and the same command again one second later."""
    pid = start_service(host)
    task = host.counter(uid=1000).ready()
    host.run("kill", "-9", str(pid))
    wait_for("its end", lambda: host.run("kill", "-0", str(pid)).returncode != 0)
    assert start_service(host) != pid
    task.goes_on()
    host.client("smcount", uid=1001).wait("sms")


def test_sigterm_ends_the_service_and_everything_of_it(host: Host) -> None:
    """systemctl stop."""
    pid = start_service(host)
    host.client("smcount").wait("sms")
    host.run("kill", "-TERM", str(pid))
    wait_for("the end of it", lambda: not [line for line in host.processes() if "nvidia-cuda-mps" in line])
