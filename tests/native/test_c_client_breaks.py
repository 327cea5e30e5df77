"""The C client when connections break, when mpsd is killed and when its keeper is: its calls and its memory outlive them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for
from tests.native.c_client_drive import MIB, Answer, Drive, Relay, open_relay
from tests.native.c_client_fixtures import Begin, machine_of_all, opened  # noqa: F401


@pytest.fixture
def fresh() -> Iterator[Machine]:
    """For those that end mpsd or its keeper."""
    with open_machine() as made:
        made.start()
        yield made


@pytest.fixture
def relay(machine: Machine, short_dir: Path) -> Iterator[Relay]:
    with open_relay(short_dir / "relay.sock", machine.pipe / "mpsd.sock") as made:
        yield made


# -- connections ------------------------------------------------------------------------------------------------------

STEPS = {  # what is called -> what to do before it, and the line
    "arena.create": ([], "create {name} 67108864"),
    "arena.get": (["create {name} 67108864", "open {name} write 0"], "close"),
    "arena.open": (["create {name} 67108864"], "open {name} write 5"),
    "arena.take": (
        ["create {name} 536870912", "open {name} write 0", *["alloc 1"] * 128, "commit", "close"],
        "open {name} write 0",
    ),
    "arena.put": (["create {name} 67108864", "open {name} write 0", "alloc 1"], "flush"),
    "arena.drop": (["create {name} 67108864", "open {name} write 0", "alloc 1", "commit", "free {first}"], "flush"),
    "arena.commit": (["create {name} 67108864", "open {name} write 0", "alloc 1"], "commit words"),
    "arena.seal": (["create {name} 67108864", "open {name} write 0", "commit"], "seal"),
    "arena.close": (["create {name} 67108864", "open {name} write 0"], "close"),
    "arena.remove": (["create {name} 67108864"], "remove {name}"),
}


def prepare(drive: Drive, method: str, name: str) -> str:
    """The line that makes the call, after what has to come before it."""
    before, line = STEPS[method]
    first = ""
    for each in before:
        words = drive.do(each.format(name=name, first=first))
        first = words if each.startswith("alloc") else first
    return line.format(name=name)


@pytest.mark.parametrize("when", ["before mpsd heard it", "after mpsd did it"])
@pytest.mark.parametrize("method", STEPS)
def test_a_connection_that_breaks_in_the_middle_of_a_call_is_not_noticed(
    relay: Relay, machine: Machine, begin: Begin, name: str, method: str, when: str
) -> None:
    """Twice in a row, even: the call is made again, and means the same."""
    drive = begin(machine, relay.path)
    line = prepare(drive, method, name)
    (relay.lose if when.startswith("after") else relay.refuse)[method] = 2
    assert drive.ask(line).result == 0
    assert relay.lose.get(method, 0) == relay.refuse.get(method, 0) == 0
    assert relay.seen.count("hello") == 3
    drive.do("call health")


def test_an_arena_that_was_made_is_no_other_processs_for_its_rounded_capacity(
    relay: Relay, machine: Machine, begin: Begin, name: str
) -> None:
    """mpsd rounds it up to whole granules: -EEXIST, where the arena is that of the first attempt."""
    drive = begin(machine, relay.path)
    relay.lose["arena.create"] = 1
    assert drive.ask(f"create {name} {64 * MIB - 1}").result == 0
    assert drive.ask(f"create {name} {64 * MIB - 1}").error == "EEXIST"


@pytest.mark.parametrize("when", ["before mpsd heard it", "after mpsd did it"])
def test_what_is_on_its_way_when_a_connection_breaks_is_given_again(
    relay: Relay, machine: Machine, begin: Begin, name: str, when: str
) -> None:
    """Allocating does not wait for mpsd's answer to what was allocated before."""
    drive = begin(machine, relay.path)
    drive.do(f"create {name} {400 * MIB}")
    drive.do(f"open {name} write 0")
    (relay.lose if when.startswith("after") else relay.refuse)["arena.put"] = 1
    places = [drive.do(f"alloc {2 * MIB}") for _ in range(140)]
    drive.do(f"free {places.pop(100)}")
    drive.do("commit")
    assert relay.lose.get("arena.put", 0) == relay.refuse.get("arena.put", 0) == 0
    drive.do("close")
    drive.do(f"open {name} read 0")
    assert [each.partition(":")[0] for each in drive.do("list").split()] == places


def test_what_mpsd_may_have_is_not_forgotten_here(relay: Relay, machine: Machine, begin: Begin, name: str) -> None:
    """The library does not know whether the request reached mpsd, and the memory is freed: another one gets its place then."""
    drive = begin(machine, relay.path)
    drive.do(f"create {name} {400 * MIB}")
    drive.do(f"open {name} write 0")
    relay.lose["arena.put"] = 1
    places = [drive.do(f"alloc {2 * MIB}") for _ in range(65)]
    for each in places[:2]:
        drive.do(f"free {each}")
    drive.do("flush")
    assert drive.do(f"alloc {4 * MIB}") == places[0]
    drive.do("commit")
    drive.do("close")
    drive.do(f"open {name} read 0")
    assert [each.partition(":")[0] for each in drive.do("list").split()] == [places[0], *places[2:]]


def test_what_may_not_be_done_twice_is_not(relay: Relay, machine: Machine, begin: Begin) -> None:
    """The library reports to its caller that the result is unknown."""
    drive = begin(machine, relay.path)
    relay.lose["health"] = 1
    answer = drive.ask("call health once")
    assert (answer.error, "it is not known whether" in answer.words) == ("ECONNRESET", True)
    assert relay.seen.count("health") == 1
    drive.do("call health once")


def test_a_connection_that_always_breaks_ends_the_call(relay: Relay, machine: Machine, begin: Begin) -> None:
    drive = begin(machine, relay.path)
    relay.lose["health"] = 1000
    answer = drive.ask("call health")
    assert (answer.error, relay.seen.count("health")) == ("ECONNREFUSED", 9)


def test_nobody_there_is_said_at_once_and_waited_for_later(
    relay: Relay, machine: Machine, begin: Begin, short_dir: Path
) -> None:
    drive = begin(machine, relay.path)
    drive.do("patience 0.05 5")
    relay.close()
    relay.lose["health"] = 1
    answer = drive.ask("call health")
    assert (answer.error, "no mpsd at" in answer.words) == ("ECONNREFUSED", True)
    drive.do("hangup")
    missing = drive.ask(f"session {short_dir}/none.sock")
    assert missing == Answer(-111, f"no mpsd at {short_dir}/none.sock: No such file or directory")


# -- mpsd and its keeper ----------------------------------------------------------------------------------------------


def kill_keepers(machine: Machine) -> None:
    """The vault's and the relay's, which is of no account here."""
    before = len(machine.journal("vault.lost"))
    for pid in machine.processes("mpsd-keeper"):
        os.kill(pid, signal.SIGKILL)
    wait_for("mpsd to notice", lambda: len(machine.journal("vault.lost")) > before)


def test_the_keeper_dies_and_the_writer_gives_all_again(machine: Machine, begin: Begin, name: str) -> None:
    """What was committed is committed again before anything else, with its layout; then what is new."""
    drive = opened(begin(machine), name)
    kept, new = drive.alloc(2, 1), ""
    drive.do("commit words")
    for generation in (2, 3):
        kill_keepers(machine)
        new = drive.alloc(2, generation)
        drive.do("flush")
        assert drive.do("facts").split()[0] == str(generation)
    drive.do("commit")
    kill_keepers(machine)
    drive.do("close")
    second = begin(machine)
    second.do(f"open {name} write 20")
    assert second.do("layout") == "words"
    second.do(f"check {kept} {2 * MIB} 1")
    second.do(f"check {new} {2 * MIB} 3")


@pytest.mark.slow
def test_a_commit_of_which_a_part_is_gone_is_not_made_up(fresh: Machine, begin: Begin, name: str) -> None:
    """Memory that was freed since the commit was lost with the keeper: half a commit counts as none, until the writer commits
    again."""
    drive = opened(begin(fresh), name)
    gone, left = drive.alloc(2, 1), drive.alloc(2, 2)
    drive.do("commit words")
    drive.do(f"free {gone}")
    drive.do("flush")
    kill_keepers(fresh)
    new = drive.do(f"alloc {2 * MIB}")
    drive.do("flush")
    reader = begin(fresh)
    reader.do(f"open {name} read 0")
    assert (reader.do("list"), reader.do("layout")) == ("", "")
    drive.do("commit")
    drive.kill()
    second = begin(fresh)
    second.do(f"open {name} write 20")
    assert {each.partition(":")[0] for each in second.do("list").split()} == {left, new}
    assert second.do("layout") == "words"
    second.do(f"check {left} {2 * MIB} 2")


@pytest.mark.slow
@pytest.mark.parametrize("method", STEPS)
def test_mpsd_is_killed_and_comes_back_in_the_middle_of_a_call(fresh: Machine, begin: Begin, name: str, method: str) -> None:
    """mpsd stands still, so that the call waits; then it is killed, and another one started."""
    drive = begin(fresh)
    line = prepare(drive, method, name)
    os.kill(fresh.daemon_pid(), signal.SIGSTOP)
    drive.say(line)
    fresh.kill_daemon()
    fresh.start()
    assert drive.hear().result == 0
    drive.do("call health")
