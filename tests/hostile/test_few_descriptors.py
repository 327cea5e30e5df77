"""mpsd with few descriptors: it serves as many clients as it has descriptors for, reports why others wait, and recovers."""

import os
import subprocess

from mpsd_client import calls

from tests.integration.machine import FRONT_END, START_SECONDS, Machine
from tests.integration.process import wait_for

CLIENTS = 40


def start(machine: Machine, files: int) -> "subprocess.CompletedProcess[str]":
    """Without the right to raise the limit."""
    few = ["setpriv", "--bounding-set=-sys_resource", "prlimit", f"--nofile={files}:{files}"]
    return subprocess.run(
        [*few, str(FRONT_END), "-d"], env=machine.variables, capture_output=True, text=True, cwd="/", timeout=START_SECONDS,
        check=False,
    )  # fmt: skip


def open_files(machine: Machine) -> int:
    return len(os.listdir(f"/proc/{machine.daemon_pid()}/fd"))


def test_with_too_few_mpsd_does_not_start_and_says_why(machine: Machine) -> None:
    """It started, took 41 of 100 clients, and never closed a descriptor again; `quit` hung."""
    done = start(machine, 64)
    assert done.returncode == 1
    assert "may open 48 files and needs 224 at least: raise LimitNOFILE=" in done.stdout


def test_a_crowd_is_served_as_far_as_descriptors_go_and_all_are_given_back(machine: Machine) -> None:
    assert start(machine, 256).returncode == 0
    before = open_files(machine)
    running = [machine.client("hold", uid=1000).ready() for _ in range(5)]
    for _ in range(CLIENTS):
        machine.client("hold", uid=1000)
    refused = wait_for("refusals", lambda: machine.journal("client.refused"))
    assert "mpsd has open files for 5 clients, and as many run: raise LimitNOFILE=" in refused[0]["why"]
    with machine.mpsd() as mpsd:
        words = "as many as mpsd takes on: raise relay.max_connections and LimitNOFILE="
        assert any(words in problem for problem in mpsd.ask(calls.health()).problems)
    assert not any(client.has_ended() for client in running)
    assert open_files(machine) <= 240
    machine.end_children()
    machine.client("hold").ready()
    machine.end_children()
    wait_for("the descriptors of before, and those of a spare", lambda: open_files(machine) <= before + 8)
    assert machine.quit() == 0
