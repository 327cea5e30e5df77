"""mpsd with few descriptors: it serves as many clients as it has descriptors for, reports why others wait, and recovers."""

import json
import os
import subprocess

from mpsd_client import calls

from tests.hostile.attacker import attacking
from tests.hostile.frames import frames
from tests.integration.machine import FRONT_END, START_SECONDS, Machine
from tests.integration.process import wait_for

CLIENTS = 40
GRANULE, MOST = 2 << 20, 128
# It puts memory into an arena, and asks for its descriptors in 60 connections until none takes a further question.
READS_NOTHING = """
import array, fcntl, json, os, socket, sys, time
path, begins, hello, asks = sys.argv[1], *map(json.loads, sys.argv[2:])
def connected():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(path)
    return made
def block():
    made = os.memfd_create("block", os.MFD_ALLOW_SEALING)
    os.write(made, b"1")
    fcntl.fcntl(made, 1033, 15)  # F_ADD_SEALS
    return made
first, put = connected(), [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [block() for _ in range(128)]))]
for number, frame in enumerate(begins):
    first.sendmsg([bytes.fromhex(frame)], put if number == 3 else [])
    first.recv(65536)
crowd = [connected() for _ in range(60)]
for each in crowd:
    each.send(bytes.fromhex(hello))
    each.recv(65536)
taken = time.monotonic()
while time.monotonic() < taken + 1:
    for number, each in enumerate(crowd):
        try:
            each.send(bytes.fromhex(asks[number >= 7]), socket.MSG_DONTWAIT)
            taken = time.monotonic()
        except BlockingIOError:
            pass
print("ready", flush=True)
time.sleep(600)
"""


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


def test_a_user_who_reads_no_answer_takes_no_descriptors_from_others(machine: Machine) -> None:
    """Each answer that waited to be sent held up to 128: no client of another user started, and a source of faults ended."""
    assert start(machine, 1024).returncode == 0
    before = open_files(machine)
    pairs = [(number * GRANULE, GRANULE) for number in range(MOST)]
    begins = frames(
        calls.arena_create("mine", "0", MOST * GRANULE), calls.arena_open("mine", "write"), calls.arena_put(1, 1, pairs, []),
        calls.arena_commit(1, 1),
    )  # fmt: skip
    asks = [frames(calls.arena_take(1, limit=limit))[1] for limit in (MOST, 2)]
    words = machine.pipe / "mpsd.sock", json.dumps(begins), json.dumps(begins[0]), json.dumps(asks)
    with attacking(READS_NOTHING, *words):
        assert open_files(machine) < before + 60 + 2 * MOST
        machine.client("hold", uid=1000).ready()
