"""A starter that keeps a replica, when its service changes the GPU: real processes and daemon, the simulator with two GPUs."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mpsd_client import Refused, calls

from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_moves import moved
from tests.integration.test_replicas import PROGRAM, SECONDS, Cast, events, fail, replica, view
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


@contextmanager
def begun(cast: Cast, *options: str, before: tuple[str, ...] = ()) -> Iterator[None]:
    """A starter of the service on GPU 0, with its replica on GPU 1, once all are there.  before: words before the program's."""
    machine, (first, second) = cast.machine, cast.machine.uuids()
    words = [sys.executable, "-m", "mpsctl", "service", "run", "llm", "--json", "--gpu", "0", "--replica-gpu", "1", *options]
    words += ["--log-dir", str(machine.place / "logs"), "--", *before, sys.executable, str(PROGRAM)]
    words += ["llm", str(cast.directory), "0"]
    said = machine.place / "starter"
    with said.open("wb") as file:
        starter = subprocess.Popen(words, env=machine.variables, stdout=file)
    try:
        wait_for("an active, a standby, a replica", lambda: is_whole(machine, first, second), 2 * SECONDS)
        yield
    finally:
        starter.terminate()
        try:
            assert starter.wait(SECONDS) == 0
        finally:
            starter.kill()
            print(said.read_text())
            for each in sorted((machine.place / "logs").glob("*.log")):
                print(each, each.read_text()[-1500:])
    assert not machine.bugs()


@pytest.mark.slow
def test_a_starter_keeps_a_replica_and_follows_the_service_to_its_gpu(cast: Cast) -> None:
    """An active, a standby and a replica; after the move the same on the other GPU, with the replica where the active was."""
    machine, (first, second) = cast.machine, cast.machine.uuids()
    with begun(cast):
        keeper = replica(machine).pid
        old = [each.pid for each in view(machine).members]
        fail(machine, first, 79)
        wait_for("the service on the other GPU", lambda: view(machine).gpu == second, SECONDS)
        machine.wait_for_journal("gpu.drained")  # the service may move before that: once its members have ended
        with machine.mpsd() as mpsd:
            mpsd.ask(calls.blame_pardon(first))  # it was reset
        wait_for("the same there", lambda: is_whole(machine, second, first), 2 * SECONDS)
        assert view(machine).writer_pid == keeper
        wait_for("the former members to end", lambda: not any(map(is_running, old)), SECONDS)


@pytest.mark.slow
def test_a_starter_follows_moves_there_and_back(cast: Cast) -> None:
    """After each move: an active and a standby on the GPU of the service, and a replica on the one that it left.

    A member that mpsd dismisses ends with status 0 here, as one may that has nothing to complain of: its work is not done."""
    machine, (first, second) = cast.machine, cast.machine.uuids()
    with begun(cast, "--standbys", "1", "--until-done", before=("sh", "-c", '"$@" || [ $? = 1 ]', "member")):
        for home, away in ((second, first), (first, second)):
            old = [each.pid for each in view(machine).members]
            to_pid = moved(machine, home)["to_pid"]
            wait_for("the same on the other GPU", lambda: is_whole(machine, home, away), 2 * SECONDS)  # noqa: B023
            assert view(machine).writer_pid == to_pid
            wait_for("the former members to end", lambda: not any(map(is_running, old)), SECONDS)  # noqa: B023
    assert not events(machine, "unmoved")
