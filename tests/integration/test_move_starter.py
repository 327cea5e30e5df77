"""A starter that keeps a replica, and moves of its service: real processes, the real daemon, the simulator with two GPUs."""

import subprocess
import sys

import pytest
from mpsd_client import Refused

from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_moves import moved
from tests.integration.test_replicas import PROGRAM, SECONDS, Cast, events, view
from tests.integration.test_replicas import cast as cast
from tests.integration.test_replicas import pytestmark as pytestmark


def is_whole(machine: Machine, gpu: str, replica_gpu: str) -> bool:
    """Return whether an active and a ready standby are on one GPU, and a replica with an image on the other one."""
    try:
        found = view(machine)
    except Refused:
        return False
    ready = [each.standing == "ready" and not each.is_writer for each in found.members]
    is_there = found.replica is not None and found.replica.gpu == replica_gpu and found.replica.at is not None
    return (found.gpu, found.phase, sorted(ready), is_there) == (gpu, "serving", [False, True], True)


@pytest.mark.slow
def test_a_starter_follows_moves_there_and_back(cast: Cast) -> None:
    """After each move: an active and a standby on the GPU of the service, and a replica on the one that it left.

    A member that mpsd dismisses ends with status 0 here, as one may that has nothing to complain of: its work is not done."""
    machine, (first, second) = cast.machine, cast.machine.uuids()
    words = [sys.executable, "-m", "mpsctl", "service", "run", "llm", "--json", "--standbys", "1", "--gpu", "0"]
    words += ["--replica-gpu", "1", "--until-done", "--log-dir", str(machine.place / "logs")]
    words += ["--", "sh", "-c", '"$@" || [ $? = 1 ]', "member", sys.executable, str(PROGRAM), "llm", str(cast.directory), "0"]
    said = machine.place / "starter"
    with said.open("wb") as file:
        starter = subprocess.Popen(words, env=machine.variables, stdout=file)
    try:
        wait_for("an active, a standby, a replica", lambda: is_whole(machine, first, second), 2 * SECONDS)
        for home, away in ((second, first), (first, second)):
            old = [each.pid for each in view(machine).members]
            to_pid = moved(machine, home)["to_pid"]
            wait_for("the same on the other GPU", lambda: is_whole(machine, home, away), 2 * SECONDS)  # noqa: B023
            assert view(machine).writer_pid == to_pid
            assert not any(map(is_running, old))
    finally:
        starter.terminate()
        try:
            assert starter.wait(SECONDS) == 0
        finally:
            starter.kill()
            print(said.read_text())
            for each in sorted((machine.place / "logs").glob("*.log")):
                print(each, each.read_text()[-1500:])
    assert not events(machine, "unmoved")
    assert not machine.bugs()
