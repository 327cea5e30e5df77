"""The C client when mpsd's keeper dies under a writer with a forward state: both are there again together, or neither."""

from typing import Any

import pytest
from mpsd_client import calls
from mpsd_client._call import Call

from tests.integration.machine import Machine
from tests.native.c_client_drive import MIB, Drive
from tests.native.c_client_fixtures import Begin, machine_of_all, opened  # noqa: F401
from tests.native.test_c_client_breaks import kill_keepers

pytestmark = pytest.mark.slow
SIZE = 2 * MIB


def seen(machine: Machine, name: str) -> tuple[int, int, bool]:
    """Return the next writer's view: its generation, the number of allocations, whether there is a state."""
    with machine.mpsd() as mpsd:
        arena = mpsd.ask(Call("arena.get", {"name": name}, dict[str, Any]))
    return arena["generation"], arena["allocations"], bool(arena["state_serial"])


def serving(machine: Machine, begin: Begin, name: str) -> Drive:
    """A writer with two allocations, a layout and a state, all of which mpsd has."""
    drive = opened(begin(machine), name)
    drive.alloc(2, 1)
    drive.alloc(2, 2)
    drive.do("commit words")
    drive.do("state")
    assert (seen(machine, name), drive.do("restore")) == ((1, 2, True), "0")
    return drive


@pytest.mark.parametrize("line", ["restore", "commit", "alloc 1", "close"])
def test_whatever_is_asked_next_gives_the_state_with_the_memory(
    machine: Machine, begin: Begin, name: str, line: str
) -> None:
    drive = serving(machine, begin, name)
    kill_keepers(machine)
    assert seen(machine, name) == (2, 0, False)
    if line == "alloc 1":  # reported later
        drive.do(line)
        assert seen(machine, name) == (2, 0, False)
        line = "flush"
    drive.do(line)
    assert seen(machine, name) == (2, 2, True)
    if line != "close":
        assert (int(drive.do("restore")) > 1, drive.do("facts").split()[0]) == (True, "2")


def test_the_state_waits_for_the_commit_where_a_part_of_the_last_one_is_gone(machine: Machine, begin: Begin, name: str) -> None:
    """The keeper dies a second time in between: a layout without its memory is not committed either."""
    drive = serving(machine, begin, name)
    gone = drive.alloc(2, 3)
    drive.do("commit words")
    drive.do(f"free {gone}")
    drive.do("flush")
    for generation in (2, 3):
        kill_keepers(machine)
        waits = drive.ask("restore")
        assert (waits.error, "was changed since" in waits.words) == ("EBUSY", True), waits
        drive.do("flush")
        assert seen(machine, name) == (generation, 0, False)
    drive.do("commit")
    assert (seen(machine, name), drive.do("layout"), int(drive.do("restore")) > 1) == ((3, 2, True), "words", True)


def test_what_is_freed_before_all_is_there_again_is_waited_for(machine: Machine, begin: Begin, name: str) -> None:
    """The quota is smaller now, so that giving it again fails half way."""
    drive = serving(machine, begin, name)
    place = drive.do("list").split()[0].partition(":")[0]
    kill_keepers(machine)
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.arena_change(mpsd.ask(calls.arena_get(name)).id, capacity_bytes=SIZE))
    assert drive.ask("restore").error == "ENOSPC"
    drive.do(f"free {place}")
    assert drive.ask("restore").error == "EBUSY"
    assert seen(machine, name) == (2, 0, False)
    drive.do("commit")
    assert seen(machine, name) == (2, 1, True)


def test_a_state_that_mpsd_was_not_given_yet_comes_with_the_memory(machine: Machine, begin: Begin, name: str) -> None:
    drive = opened(begin(machine), name)
    drive.alloc(2, 1)
    drive.do("commit words")
    drive.do("state quietly")
    kill_keepers(machine)
    assert (int(drive.do("restore")) > 0, seen(machine, name)) == (True, (2, 1, True))


def test_a_reader_has_no_state(machine: Machine, begin: Begin, name: str) -> None:
    drive = serving(machine, begin, name)
    drive.do("yielded")
    assert (drive.ask("state").error, drive.ask("restore").error) == ("EACCES", "EACCES")
