"""A standby rehearses its step on copies of the arena's memory: the active's memory, its record and its promotion are as if it
had not."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.example_member import start_member, wait_until_ready
from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for

MEMBER = Path(__file__).with_name("rehearsal_member.py")
SECONDS = 30.0


@pytest.fixture(name="machine", scope="module")
def machine_of_members(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        made.configure("[services]\nmost_promotions = 100\n")
        made.start()
        yield made


def start(machine: Machine, what: str, name: str, *words: str) -> Client:
    return start_member(machine, MEMBER, what, "--service", name, *words)


def active_of(machine: Machine, name: str, *words: str) -> Client:
    """A member that serves, and has made some steps."""
    made = start(machine, "all", name, *words)
    made.wait("step", SECONDS)
    return made


def take_over(active: Client, standby: Client) -> None:
    """The standby goes on with the count of the active: nothing was added by a rehearsal, and no step was lost."""
    active.end(signal.SIGKILL)
    counts = standby.wait("promoted", SECONDS)["counts"]
    step = standby.wait("step", SECONDS)
    last = active.events("step")[-1]
    assert counts[0] >= last["counts"][0]
    assert abs(counts[0] - counts[1]) <= 1  # the active was killed between the two
    done = step["counts"][0] - counts[0]
    assert 1 <= done <= 10, f"{done} steps from {counts} to {step}"
    assert step["counts"][0] - step["n"] in (0, 1), "a step that was not published is made again"
    standby.end(signal.SIGKILL)


@pytest.mark.parametrize("what", ["all", "some"])
def test_a_rehearsal_changes_nothing_but_is_run_three_times(what: str, machine: Machine) -> None:
    active = active_of(machine, what)
    standby = start(machine, what, what)
    found = standby.wait("rehearsed", SECONDS)
    assert (found["done"], found["runs"]) == (True, 3)
    assert 0 < found["before"][0] <= found["seen"][0] <= found["counts"][0], "its copies are not of the active's memory"
    assert found["is_generator_kept"]
    assert not found["is_writable"]
    assert found["read_only"] == [[what == "some", False], [True, True]], "Tensor.frombytes must write to a copy, and no other"
    wait_until_ready(machine, what, standby, SECONDS)
    reached = active.wait("step", SECONDS, len(active.events("step")) + 1)
    assert reached["counts"] == 2 * [reached["n"]], "the standby has written to the active's memory"
    take_over(active, standby)


def test_a_step_that_raises_leaves_the_arena_as_it_was(machine: Machine) -> None:
    active = active_of(machine, "raises")
    standby = start(machine, "raises", "raises")
    found = standby.wait("rehearsed", SECONDS)
    assert (found["done"], found["why"], found["runs"]) == (None, "as it was told to", 1)
    assert (found["is_writable"], found["is_generator_kept"]) == (False, True)
    wait_until_ready(machine, "raises", standby, SECONDS)
    take_over(active, standby)


def test_a_rehearsal_within_a_rehearsal_is_refused(machine: Machine) -> None:
    active = active_of(machine, "twice")
    standby = start(machine, "twice", "twice")
    assert "is in a rehearsal" in standby.wait("rehearsed", SECONDS)["why"]
    wait_until_ready(machine, "twice", standby, SECONDS)
    take_over(active, standby)


def test_a_write_outside_the_copies_is_refused_by_the_gpu(machine: Machine) -> None:
    """The write ends the process that rehearses, in its own fault domain, and does not reach the active's memory."""
    active = active_of(machine, "stray")
    standby = start(machine, "stray", "stray")
    assert standby.status(SECONDS) != 0
    assert not standby.events("strayed")
    reached = active.wait("step", SECONDS, len(active.events("step")) + 1)
    assert reached["counts"] == 2 * [reached["n"]]
    other = start(machine, "all", "stray")
    wait_until_ready(machine, "stray", other, SECONDS)
    take_over(active, other)


def test_without_room_for_copies_the_member_stands_by_all_the_same(programs: None) -> None:
    """With the names of the written tensors the copies fit."""
    with open_machine() as machine:
        machine.variables["MPSD_SIM_MEMORY_MIB"] = "6144"
        machine.start()
        active = active_of(machine, "full", "--more", str(2 << 30))
        standby = start(machine, "all", "full")
        found = standby.wait("rehearsed", SECONDS)
        assert (found["done"], found["runs"]) == (False, 0)
        assert "was not rehearsed, its first run will be slow: copies take 2.00 GiB" in standby.output.read_text()
        wait_until_ready(machine, "full", standby, SECONDS)
        third = start(machine, "some", "full")
        assert third.wait("rehearsed", SECONDS)["done"]
        third.end(signal.SIGKILL)
        take_over(active, standby)


def test_a_promotion_waits_for_the_current_run_alone(machine: Machine, tmp_path: Path) -> None:
    """The standby is ready when the active commits again; it rehearses that, and the active dies in the first run."""
    gate, commit = tmp_path / "gate", tmp_path / "commit"
    active = active_of(machine, "held", "--commit", str(commit))
    standby = start(machine, "held", "held", "--gate", str(gate))
    wait_until_ready(machine, "held", standby, SECONDS)
    commit.touch()
    standby.wait("held", SECONDS)
    active.end(signal.SIGKILL)

    with machine.mpsd() as mpsd:
        wait_for("mpsd to promote it", lambda: mpsd.ask(calls.service_get("held")).phase == "promoting", SECONDS)
    gate.touch()
    found = standby.wait("rehearsed", SECONDS)
    assert (found["done"], found["runs"]) == (False, 1)
    assert found["counts"] == found["before"] or found["counts"][0] >= found["before"][0]
    promoted_counts = standby.wait("promoted", SECONDS)["counts"]
    assert promoted_counts[0] >= active.events("step")[-1]["counts"][0]
    assert standby.wait("step", SECONDS)["counts"][0] > promoted_counts[0]
    standby.end(signal.SIGKILL)
