"""A service moves to another GPU while it serves: real processes, the real daemon, the simulator with two GPUs."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Refused, calls

from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.integration.test_replicas import PARTS, SECONDS, Cast, Member, events, expected, is_kept, is_replicated, strike, view
from tests.integration.test_replicas import cast as cast
from tests.integration.test_replicas import pytestmark as pytestmark
from tests.seeds import seeds


def mpsctl(machine: Machine, *words: str) -> "subprocess.CompletedProcess[str]":
    return machine.run(*words, program=Path(sys.executable).with_name("mpsctl"), seconds=2 * SECONDS)


def move(machine: Machine, gpu: str) -> "subprocess.CompletedProcess[str]":
    return mpsctl(machine, "--json", "service", "move", "llm", "--gpu", gpu, "--wait", "30s")


def moved(machine: Machine, gpu: str) -> dict[str, Any]:
    """Move the service by mpsctl, and return the document."""
    done = move(machine, gpu)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    states = [json.loads(line)["state"] for line in done.stderr.splitlines()]
    assert states[0] == "copying"
    assert found["state"] == "done"
    return found


def test_a_service_moves_there_and_back(cast: Cast) -> None:
    machine = cast.machine
    active, standby = cast.pair()
    first, second = machine.uuids()
    found = moved(machine, "1")
    term = standby.first("term")
    assert (found["from_gpu"], found["to_gpu"], found["to_pid"]) == (first, second, standby.pid)
    assert (term["gpu"], term["name"], term["generation"]) == (second, "llm", 2)
    assert active.process.wait(SECONDS) != 0, "mpsd dismisses the members on the first GPU"
    assert term["step"] == active.step, "not one is lost, and none is made twice"
    assert term["found"] == expected(term["step"])
    standby.first("step")
    assert view(machine).gpu == second
    at = time.time()
    back = cast.start(0)
    back.wait("a replica on the first GPU", lambda: is_replicated(machine, at))
    assert back.first("open")["gpu"] == first
    moved(machine, first)
    home = back.first("term")
    standby.process.wait(SECONDS)
    assert home["step"] == standby.step > term["step"]
    assert home["found"] == expected(home["step"])
    assert (home["gpu"], home["name"], home["generation"]) == (first, "llm", 3)
    back.first("step")
    assert [each["from_gpu"] for each in events(machine, "moved")] == [first, second]
    assert not events(machine, "unmoved")
    assert not machine.bugs()


def test_what_cannot_move_is_refused_and_the_service_serves_on(cast: Cast) -> None:
    machine = cast.machine
    active = cast.start(0)
    active.first("step")
    first, second = machine.uuids()
    for gpu, why in (
        ("0", f"service llm is on GPU {first} already"),
        ("7", '"7" names no device of this daemon'),
        ("1", f"service llm has no replica on GPU {second}: start a member there"),
    ):
        done = move(machine, gpu)
        assert done.returncode == 1
        assert why in done.stderr
    done = mpsctl(machine, "service", "move", "no-such", "--gpu", "1")
    assert (done.returncode, "NO_SUCH_ARENA" in done.stderr) == (1, True)
    standby = cast.start(1)
    standby.wait("a replica", lambda: is_replicated(machine))
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.service_change("llm", sm_percent=30.0))
        mpsd.ask(calls.service_move("llm", "1", 30.0))
        with pytest.raises(Refused, match=r"moves to GPU .* already"):
            mpsd.ask(calls.service_move("llm", "1", 30.0))
    standby.first("step")
    assert view(machine).settings.sm_percent == 30.0, "they go with it"


class Supervisor:
    """Starts each member that has ended again, on its GPU."""

    def __init__(self, cast: Cast) -> None:
        self.cast, self.machine = cast, cast.machine
        self.members: dict[int, Member] = dict(enumerate(cast.pair()))
        self.refusals: list[str] = []

    def look(self) -> None:
        for gpu, member in list(self.members.items()):
            if member.process.poll() is not None:
                self.members[gpu] = self.cast.start(gpu)

    def steps(self) -> list[dict[str, Any]]:
        return [each for member in self.cast.members for each in member.all("step")]

    def settle(self, beyond: int) -> int:
        """Wait for later steps, the vault's memory, and a replica of that; return the GPU of the active."""
        at = time.time()

        def is_settled() -> bool:
            self.look()
            is_later = max(each["step"] for each in self.steps()) > beyond + 10
            return is_later and is_replicated(self.machine, at) and is_kept(self.machine) and not self._is_moving()

        wait_for("a service with a replica", is_settled, 2 * SECONDS)
        return self.machine.uuids().index(view(self.machine).gpu)

    def _is_moving(self) -> bool:
        move = view(self.machine).move
        return move is not None and move.state not in ("done", "cancelled")

    def begin(self, to: int) -> None:
        def is_begun() -> bool:
            try:
                with self.machine.mpsd() as mpsd:
                    mpsd.ask(calls.service_move("llm", str(to), 20.0))
            except Refused as exc:  # its member has just joined, and serves in a moment
                self.refusals.append(str(exc))
                return False
            return True

        try:
            wait_for("the begin of a move", is_begun, SECONDS)
        except AssertionError:
            raise AssertionError(f"no move: {set(self.refusals)}") from None


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_a_part_that_is_killed_during_a_move_loses_no_step(cast: Cast, seed: int) -> None:
    """Each part is killed during a move, which is completed or cancelled: in both cases one member serves on, after the last
    step that any member has published.  Members compare memory and record at each term."""
    chosen, machine, supervisor = random.Random(seed), cast.machine, Supervisor(cast)
    here = 0
    for part in chosen.sample(PARTS, len(PARTS)):
        supervisor.begin(1 - here)
        time.sleep(chosen.uniform(0, 1.0))
        strike(cast, part, supervisor.members[here], supervisor.members[1 - here])
        here = supervisor.settle(max(each["step"] for each in supervisor.steps()))
    terms = [each for member in cast.members for each in member.all("term")]
    assert all(each["right"] for each in terms), terms
    for term in terms:
        earlier = [each["step"] for each in supervisor.steps() if each["generation"] < term["generation"]]
        assert term["step"] >= max(earlier, default=0), f"a published step is lost: {term}"
    generations = [term["generation"] for term in terms]
    assert len(generations) == len(set(generations)), "two members served in one term"
    assert not machine.bugs()
