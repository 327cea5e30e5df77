"""sglang-omni, the strictest caller: it believes nothing that it has not checked in /proc."""

import os
import signal
from pathlib import Path

import pytest

from tests.integration.machine import PROGRAM, Machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_the_pid_file_names_a_daemon_that_looks_like_one(machine: Machine) -> None:
    """Digits alone; the program's name; and in its environment the very pipe directory."""
    machine.start()
    text = (machine.pipe / f"{PROGRAM}.pid").read_text()
    assert text.isdigit()
    proc = Path(f"/proc/{text}")
    assert os.path.basename(proc.joinpath("cmdline").read_bytes().split(b"\0")[0]) == PROGRAM.encode()
    environ = proc.joinpath("environ").read_bytes().split(b"\0")
    assert f"CUDA_MPS_PIPE_DIRECTORY={machine.pipe}".encode() in environ
    assert sorted(filter(None, environ)) == sorted(f"{k}={v}".encode() for k, v in machine.variables.items())
    assert os.readlink(proc / "cwd") == "/"
    assert {os.readlink(proc / f"fd/{number}") for number in range(3)} == {"/dev/null"}


def test_a_worker_is_terminated_before_it_is_killed_and_others_go_on(machine: Machine) -> None:
    """terminate_client must return 0 before SIGKILL is sent."""
    machine.start()
    worker, other = machine.counter().ready(), machine.counter().ready()
    server = machine.server_of(worker)
    assert machine.tell(f"terminate_client {server} {worker.pid}").strip() == "0"
    worker.process.kill()
    other.goes_on()
    wait_for("the list without it", lambda: worker.pid not in machine.clients())


def test_a_killed_server_is_noticed_and_the_next_worker_gets_another(machine: Machine) -> None:
    """The vendor's daemon lives on for seconds and serves no client."""
    machine.start()
    worker = machine.counter().ready()
    server = machine.server_of(worker)
    os.kill(server, signal.SIGKILL)
    assert worker.status() == 5
    again = machine.counter().ready()
    wait_for("the new list", lambda: server not in machine.servers())
    assert machine.server_of(again) != server


def test_static_partitions_pass_the_vendors_words_through(machine: Machine) -> None:
    """Driver 580 has no such line; the caller parses both forms of newer drivers, so neither is tested."""
    refused = machine.run("-d", "-S")
    assert refused.returncode == 1
    assert "Unrecognized option" in refused.stdout
    wait_for("its end", lambda: not machine.processes())
    machine.start()
    assert machine.tell("lspart") == 'Unknown command "lspart"\n'
    for line in ("sm_partition add GPU-00000000 10", "sm_partition rm GPU-00000000 Dx4AAA"):
        assert machine.tell(line) == 'Unknown command "sm_partition"\n'
