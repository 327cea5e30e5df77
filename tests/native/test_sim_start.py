"""The simulator's control daemon comes up, is refused and goes as driver 580's does."""

import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.native import sim_machine
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import CONTROL, Machine, eventually

TRIES_SECONDS = 0.5  # a daemon in haste asks a server again after 20 ms, and has surely done so by then
NOT_FOUND = "Cannot find MPS control daemon process\n"


def kinds(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (stat.filemode(path.lstat().st_mode)[0], stat.S_IMODE(path.lstat().st_mode)) for path in directory.iterdir()
    }


def test_the_pipe_directory_is_filled_as_the_vendor_fills_it(mps: Machine) -> None:
    files = kinds(mps.pipe)
    assert files == {
        "control": ("s", 0o666),
        "control_lock": ("-", 0o666),
        "control_privileged": ("s", 0o755),
        "log": ("p", 0o777),
        "nvidia-cuda-mps-control.pid": ("-", 0o666),
    }
    assert (mps.pipe / "nvidia-cuda-mps-control.pid").read_bytes() == str(mps.daemon_pid()).encode()
    assert mps.log("control.log").startswith(f"Starting control daemon using socket {mps.pipe}/control\n")
    assert (mps.logs / "server.log").read_bytes() == b""


def test_the_daemon_is_a_session_of_its_own_with_null_streams(mps: Machine) -> None:
    pid = mps.daemon_pid()
    assert os.getsid(pid) == pid
    assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == str(CONTROL).encode() + b"\0-d\0"


@pytest.mark.slow
def test_quit_leaves_the_sockets_and_takes_the_pid_file(mps: Machine) -> None:
    pid = mps.daemon_pid()
    assert mps.control(line="quit").returncode == 0
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert set(kinds(mps.pipe)) == {"control", "control_lock", "control_privileged"}
    assert mps.log("control.log").endswith("Cmd:quit\nExit with status 0\n")
    done = mps.control(line="get_server_list")
    assert (done.returncode, done.stderr) == (1, NOT_FOUND)
    mps.start()  # and over the leftovers it starts again


@pytest.mark.slow
def test_a_signal_leaves_everything_behind(mps: Machine) -> None:
    server = mps.start_server()
    os.kill(mps.daemon_pid(), signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{server}").exists())
    assert set(kinds(mps.pipe)) == {"control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"}
    mps.start()


def test_a_missing_parent_directory_is_said_twice(machine: Machine) -> None:
    warning = "Warning: Failed writing log files to directory [/nowhere/y]. No logs will be available.\n"
    done = machine.control("-d", CUDA_MPS_PIPE_DIRECTORY="/nowhere/x", CUDA_MPS_LOG_DIRECTORY="/nowhere/y")
    assert done.returncode == 1
    assert done.stdout == f"{warning}Cannot access CUDA_MPS_PIPE_DIRECTORY=/nowhere/x\n{warning}"


def test_an_overlong_pipe_directory_is_refused_without_a_reason(machine: Machine) -> None:
    done = machine.control("-d", CUDA_MPS_PIPE_DIRECTORY="/tmp/" + "x" * 110)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize("devices", ["", "GPU-deadbeef", "1"])
def test_no_visible_device_is_a_silent_100(machine: Machine, devices: str) -> None:
    done = machine.control("-d", CUDA_VISIBLE_DEVICES=devices)
    assert (done.returncode, done.stdout, done.stderr) == (100, "", "")
    assert not (machine.logs / "control.log").exists()


def test_in_the_foreground_the_logs_go_to_stdout(machine: Machine) -> None:
    process = subprocess.Popen([CONTROL, "-f"], env=machine.environment(), stdout=subprocess.PIPE, text=True)
    machine.started.append(process)
    eventually(lambda: machine.control(line="get_server_list").returncode == 0)
    assert machine.run("counter", "--seconds", "0.05")["event"] == "end"
    assert machine.control(line="quit").returncode == 0
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "] Starting control daemon using socket" in output
    assert "] Server has started" in output
    assert list(machine.logs.iterdir()) == []


def test_words_that_are_no_options_are_ignored(machine: Machine) -> None:
    machine.start("extra", "words")
    assert machine.ask("get_server_list") == ""


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_needs_no_daemon(machine: Machine, option: str) -> None:
    done = machine.control(option)
    assert done.returncode == 0
    assert done.stdout.startswith("CUDA MPS Control for Linux/Unix/QNX.\n")


def test_an_unknown_option_is_answered_with_the_help_and_status_0(machine: Machine) -> None:
    done = machine.control("--bogus")
    assert done.returncode == 0
    assert done.stdout.startswith("Unrecognized option \0\nCUDA MPS Control")


def test_an_unsent_line_of_4000_bytes_is_harmless_and_of_5000_is_deadly(mps: Machine) -> None:
    assert mps.ask("x" * 4000) == f'Unknown command "{"x" * 4000}"\n'
    done = mps.control(line="x" * 5000)
    assert done.returncode == 0
    assert done.stdout == ('Unknown command "' + "x" * 5000)[:4096] + "\n"
    assert mps.control(line="get_server_list").stderr == NOT_FOUND


def test_quit_waits_with_a_growing_pause(mps: Machine) -> None:
    """20, 40, 80 ms: a tenth of the vendor's, on a fast machine."""
    client = mps.client("hold")
    client.wait_for("ready")
    with subprocess.Popen([CONTROL], env=mps.environment(), stdin=subprocess.PIPE, text=True) as quitter:
        assert quitter.stdin
        quitter.stdin.write("quit\n")
        quitter.stdin.close()
        eventually(lambda: "in at most 80ms" in mps.log("control.log"))
        assert mps.control(line="get_server_list").stderr == "Cannot send command to MPS control daemon process\n"
        assert mps.run("counter")["code"] == 805
        client.kill()
        before = time.monotonic()
        assert quitter.wait(10) == 0
        assert time.monotonic() - before < 5
    server = mps.log("server.log")
    assert "Server was unable to shutdown due to 2 active clients\n" in server
    assert server.endswith("Waiting for current clients to finish\nExiting\n")


LATE_SERVER = """#!/bin/sh
while [ ! -e {gate} ]; do sleep 0.01; done
exec {server} "$@"
"""


def test_a_server_that_has_to_end_before_it_has_connected_serves_its_clients_first(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon took it for one that was leaving, and gave it no client: they were pending for ever."""
    gate, late = tmp_path / "gate", tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(CONTROL, tmp_path)  # it starts the server that is in its own directory
    late.write_text(LATE_SERVER.format(gate=gate, server=CONTROL.parent / late.name))
    late.chmod(0o755)
    monkeypatch.setattr(sim_machine, "CONTROL", tmp_path / CONTROL.name)
    machine.start()
    client = machine.client("smcount")
    server = machine.server()
    machine.ask(f"shutdown_server {server}")
    until = time.monotonic() + TRIES_SECONDS
    while time.monotonic() < until:
        assert machine.ask(f"get_server_status {server}") == "INITIALIZING\n"
    gate.touch()
    assert client.end()["seen"] == 132
    eventually(lambda: machine.ask("get_server_list") == "")
