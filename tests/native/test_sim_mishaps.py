"""The simulator's control daemon and servers fail on request, for the tests of those who depend on them."""

import os
import socket
import subprocess
import threading
import time

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import CONTROL, Machine, open_machine


def test_commands_that_overlap_are_sometimes_lost_and_never_alone() -> None:
    """On the device 58 of 400 by four pollers were lost, some with a message and some without."""
    results: list[tuple[int, str]] = []
    with open_machine(MPSD_SIM_OVERLAP_PERMILLE="500") as mps:
        mps.start()

        def poll() -> None:
            for _ in range(25):
                done = mps.control(line="get_default_client_priority")
                results.append((done.returncode, done.stderr))

        poll()
        assert {status for status, _ in results} == {0}
        results.clear()
        pollers = [threading.Thread(target=poll) for _ in range(4)]
        for poller in pollers:
            poller.start()
        for poller in pollers:
            poller.join()
    lost = [error for status, error in results if status == 1]
    assert 0 < len(lost) < len(results)
    assert set(lost) <= {"", "Cannot send command to MPS control daemon process\n"}


@pytest.mark.parametrize("where", [pytest.param("get_server_list", marks=pytest.mark.slow), "*"])
def test_a_command_can_hang(where: str) -> None:
    with open_machine(MPSD_SIM_CONTROL_FAULT=f"hang@{where}") as mps:
        mps.start()
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(
                [CONTROL], input=b"get_server_list", env=mps.environment(), capture_output=True, timeout=0.5, check=False
            )


def test_a_command_can_crash_the_daemon() -> None:
    with open_machine(MPSD_SIM_CONTROL_FAULT="crash@ps") as mps:
        mps.start()
        assert mps.ask("get_server_list") == ""
        done = mps.control(line="ps")
        assert (done.returncode, done.stderr) == (1, "Cannot send command to MPS control daemon process\n")


def test_a_command_can_be_slow_and_garbled() -> None:
    with open_machine(MPSD_SIM_CONTROL_FAULT="slow@get_server_list=300 garbage@ps") as mps:
        mps.start()
        before = time.monotonic()
        assert mps.ask("get_server_list") == ""
        assert time.monotonic() - before >= 0.3
        done = subprocess.run([CONTROL], input=b"ps", env=mps.environment(), capture_output=True, timeout=10, check=True)
        assert done.stdout == b"\x01\xff?!\n"


def test_starting_can_hang_fail_and_crash() -> None:
    with open_machine(MPSD_SIM_CONTROL_FAULT="refuse@start") as mps:
        done = mps.control("-d")
        assert (done.returncode, done.stdout) == (1, "")
    with open_machine(MPSD_SIM_CONTROL_FAULT="crash@start") as mps:
        assert mps.control("-d").returncode == 1
    with open_machine(MPSD_SIM_CONTROL_FAULT="hang@start") as mps:
        process = subprocess.Popen([CONTROL, "-f"], env=mps.environment())
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        finally:
            process.kill()
            process.wait()


def test_refused_connections_make_clients_run_without_mps() -> None:
    with open_machine(MPSD_SIM_CONTROL_FAULT="refuse@accept") as mps:
        mps.start()
        assert mps.run("counter", "--seconds", "0.05")["event"] == "end"
        assert "NEW CLIENT" not in mps.log("control.log")


@pytest.mark.parametrize("fault", ["exit", "crash"])
def test_a_server_that_cannot_start_is_tried_six_times(fault: str) -> None:
    with open_machine(MPSD_SIM_SERVER_FAULT=fault) as mps:
        mps.start()
        assert mps.run("hold")["code"] == 805
        assert mps.log("control.log").count("Starting new server") == 6


def test_a_server_that_hangs_at_start_stays_initializing() -> None:
    with open_machine(MPSD_SIM_SERVER_FAULT="hang") as mps:
        mps.start()
        mps.ask(f"start_server -uid {os.geteuid()}")
        server = mps.server()
        assert mps.ask(f"get_server_status {server}") == "INITIALIZING\n"
        assert mps.ask(f"get_client_list {server}") == ""


@pytest.mark.parametrize("data", [b"", b"\0" * 4, b"x" * 5000, b"\x01\x00\x4b\x4c" + b"\xff" * 28])
def test_whoever_connects_and_does_not_introduce_himself_blocks_everybody(mps: Machine, data: bytes) -> None:
    """The vendor's daemon waits for each peer alone and without limit; it goes on once that one has gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(str(mps.pipe / "control"))
        if data:
            peer.send(data)
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run([CONTROL], input=b"ps", env=mps.environment(), capture_output=True, timeout=0.3, check=False)
    assert mps.ask("get_default_client_priority") == "0\n"
    assert mps.run("counter", "--seconds", "0.05")["event"] == "end"
