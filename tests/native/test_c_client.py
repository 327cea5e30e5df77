"""The C client on the simulator, with mpsd and its keeper: memory outlives the process that filled it."""

import os
import re
import resource
import signal
import subprocess

import pytest

from tests.integration.machine import Machine
from tests.native.c_client_drive import GRANULE, MIB, Answer, build
from tests.native.c_client_fixtures import CAPACITY, Begin, machine_of_all, opened  # noqa: F401

# -- what outlives whom -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["keep", pytest.param("keep-c++", marks=pytest.mark.slow)])
def test_a_program_that_dies_leaves_its_memory(machine: Machine, name: str, program: str) -> None:
    """The example of the documentation, in C and in C++."""
    first, second = (
        subprocess.run(
            [str(build(program)), name, "4"], env=machine.variables, capture_output=True, text=True, timeout=20, check=False
        )
        for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0), second.stderr
    filled = re.fullmatch(r"filled (0x\w+) (\d+)\n", first.stdout)
    assert filled
    assert second.stdout == f"adopted {filled[1]} {filled[2]} generation 2 layout words wrong 0\n"


def test_what_was_committed_is_adopted_and_nothing_else(machine: Machine, begin: Begin, name: str) -> None:
    first = opened(begin(machine), name)
    one, two = first.alloc(2, 1), first.alloc(4, 2)
    first.do("commit layout-1")
    first.do(f"free {one}")
    first.alloc(2, 3)
    first.do("flush")
    first.kill()

    second = begin(machine)
    second.do(f"open {name} write 20")
    assert second.do("list").split() == [f"{one}:2:11", f"{two}:4:11"]
    assert second.do("layout") == "layout-1"
    second.do(f"check {one} {2 * MIB} 1")
    second.do(f"check {two} {4 * MIB} 2")


def test_a_reader_sees_the_same_addresses_and_cannot_write(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    address = writer.alloc(2, 7)
    writer.do("commit")
    reader = begin(machine)
    reader.do(f"open {name} read 0")
    reader.do(f"check {address} {2 * MIB} 7")
    assert reader.ask(f"fill {address} {2 * MIB} 8").error == "EFAULT"
    assert [reader.ask(line).error for line in ("alloc 1", f"free {address}", "commit", "flush", "seal")] == ["EACCES"] * 5


def test_what_is_sealed_stays_as_it_is(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    address = writer.alloc(2, 7)
    assert writer.ask("seal") == Answer(-16, f"arena {name}: sealing what is not committed: commit first")
    writer.do("commit")
    writer.do("seal")
    assert writer.ask(f"fill {address} {2 * MIB} 8").error == "EFAULT"
    assert writer.ask("alloc 1").error == "EROFS"
    assert begin(machine).ask(f"open {name} write 0").error == "EROFS"


def test_places_are_used_again_when_their_memory_is_gone(machine: Machine, begin: Begin, name: str) -> None:
    """At once, where it was never committed; with the next commit, where an adopter would still get it."""
    drive = opened(begin(machine), name)
    waiting = drive.do(f"alloc {2 * MIB}")
    drive.do(f"free {waiting}")
    assert drive.do(f"alloc {2 * MIB}") == waiting
    drive.do("flush")
    drive.do(f"free {waiting}")
    assert drive.do(f"alloc {2 * MIB}") != waiting
    drive.do("flush")
    assert drive.do(f"alloc {2 * MIB}") == waiting
    drive.do("commit")
    drive.do(f"free {waiting}")
    drive.do("flush")
    other = drive.do(f"alloc {2 * MIB}")
    assert other != waiting
    drive.do("commit")
    assert drive.do(f"alloc {2 * MIB}") == waiting


def test_capacity_and_guards_are_kept(machine: Machine, begin: Begin, name: str) -> None:
    drive = opened(begin(machine), name)
    drive.do(f"guard {2 * MIB}")
    one, two = (int(drive.do(f"alloc {2 * MIB}"), 16) for _ in range(2))
    assert (one % (1 << 30), two - one) == (2 * MIB, 4 * MIB)
    refused = drive.ask(f"alloc {CAPACITY - 3 * MIB}")
    assert refused.error == "ENOSPC"
    assert f"over its capacity: {4 * MIB} of {CAPACITY} are used" in refused.words
    drive.do(f"alloc {CAPACITY - 4 * MIB}")
    assert drive.do("facts").split()[1] == str(CAPACITY)


def test_a_hook_that_refuses_leaves_nothing(machine: Machine, begin: Begin, name: str) -> None:
    drive = opened(begin(machine), name)
    before = drive.do("descriptors")
    drive.do("hooks 1")
    assert drive.ask("alloc 1").error == "EPERM"
    drive.do("hooks 0")
    assert (drive.do("list"), drive.do("facts").split()[1], drive.do("descriptors")) == ("", "0", before)
    drive.do("alloc 1")


@pytest.mark.slow
def test_few_descriptors_are_enough_for_many_allocations(machine: Machine, begin: Begin, name: str) -> None:
    """Adopted in smaller pages where the process may not open 128 at once; given in batches."""
    drive = begin(machine)
    drive.do(f"create {name} {400 * MIB}")
    drive.do(f"open {name} write 0")
    for _ in range(200):
        drive.do(f"alloc {2 * MIB}")
    drive.do("commit")
    drive.do("close")
    room = len(os.listdir(f"/proc/{drive.pid}/fd")) + 220  # the simulator has one for each piece of memory
    resource.prlimit(drive.pid, resource.RLIMIT_NOFILE, (room, room))
    drive.do(f"open {name} write 0")
    assert len(drive.do("list").split()) == 200


def test_room_is_made_when_the_gpu_is_full(machine: Machine, begin: Begin, name: str) -> None:
    """By evicting arenas that no process holds; once, and only if there is no room."""
    total = int(machine.status()["gpus"][0]["total_mib"]) * MIB // (8 * GRANULE) * (8 * GRANULE)
    drive = begin(machine)
    for each in ("old", "new"):
        drive.do(f"create {name}-{each} {total}")
    drive.do(f"open {name}-old write 0")
    drive.do(f"alloc {total // 4 * 3}")
    drive.do("commit")
    second = begin(machine)
    second.do(f"open {name}-new write 0")
    refused = second.ask(f"alloc {total // 2}")
    assert (refused.error, "cuMemCreate" in refused.words) == ("ENOMEM", True)
    assert second.do("codes") == "0 2"
    drive.do("close")
    second.do(f"alloc {total // 2}")
    assert drive.ask(f"open {name}-old read 0").error == "ENOENT"


# -- who is in the way --------------------------------------------------------------------------------------------------


def test_what_lies_in_the_window_is_said(machine: Machine, begin: Begin, name: str) -> None:
    """Nothing was opened then: the next writer is admitted at once."""
    first = opened(begin(machine), name)
    address = first.alloc(2, 1)
    first.do("commit")
    again = first.ask(f"open {name} write 0")
    assert again.error == "EADDRINUSE"
    first.do(f"check {address} {2 * MIB} 1")
    first.do("close")

    blocked = begin(machine)
    blocked.do(f"block {address}")
    refused = blocked.ask(f"open {name} write 0")
    assert refused.error == "EADDRINUSE"
    assert re.search(rf"its window {address}-0x\w+ is not free in this process: {address[2:]}-\w+ r--p", refused.words)
    begin(machine).do(f"open {name} write 0")


def test_a_second_writer_waits_or_is_told_who_writes(machine: Machine, begin: Begin, name: str) -> None:
    first = opened(begin(machine), name)
    first.alloc(2, 1)
    first.do("commit")
    second = begin(machine)
    refused = second.ask(f"open {name} write 0")
    assert (refused.error, f"pid {first.pid}" in refused.words) == ("EBUSY", True)
    assert second.do("codes") == "21 0"
    second.say(f"open {name} write 20")
    first.do("close")
    assert second.hear().result == 0
    assert second.do("facts").split()[0] == "2"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        pytest.param("open nobody-there write 0", "ENOENT", id="no such arena"),
        pytest.param("create bad/name 2097152", "EINVAL", id="a bad name"),
        pytest.param(f"open {'x' * 200} write 0", "EINVAL", id="a name that is too long"),
        pytest.param("open x write 4000", "EINVAL", id="a wait that is too long"),
        pytest.param("call no.such.method", "ENOSYS", id="no such method"),
        pytest.param("remove nobody-there", "ENOENT", id="nothing to remove"),
    ],
)
def test_a_refusal_has_a_number_and_words(machine: Machine, begin: Begin, line: str, error: str) -> None:
    drive = begin(machine)
    answer = drive.ask(line)
    assert (answer.error, bool(answer.words)) == (error, True)
    drive.do("call health")


def test_an_arena_is_made_once(machine: Machine, begin: Begin, name: str) -> None:
    drive = begin(machine)
    drive.do(f"create {name} {CAPACITY}")
    assert drive.ask(f"create {name} {CAPACITY}").error == "EEXIST"
    drive.do(f"remove {name}")
    assert drive.ask(f"open {name} write 0").error == "ENOENT"


def test_a_child_after_fork_is_refused_and_hurts_nobody(machine: Machine, begin: Begin, name: str) -> None:
    drive = opened(begin(machine), name)
    address = drive.alloc(2, 5)
    drive.do("fork")
    drive.do("commit")
    drive.do(f"check {address} {2 * MIB} 5")
    drive.do("close")


# -- many -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_times_opened_and_closed_leaves_nothing(machine: Machine, begin: Begin, name: str) -> None:
    drive = opened(begin(machine), name)
    for _ in range(4):
        drive.alloc(2)
    drive.do("commit words")
    drive.do("close")
    before = drive.do("descriptors")
    for _ in range(1000):
        drive.do(f"open {name} write 0")
        drive.do("close")
    assert drive.do("descriptors") == before
    assert drive.do("call health") == ""


@pytest.mark.slow
def test_thousands_of_allocations_come_and_go(machine: Machine, begin: Begin, name: str) -> None:
    """In batches, both ways: the process may have few descriptors open."""
    count = 2000
    drive = begin(machine)
    drive.do(f"create {name} {count * 2 * MIB}")
    drive.do(f"open {name} write 0")
    for _ in range(count):
        drive.do(f"alloc {2 * MIB}")
    drive.do("commit words")
    drive.kill()
    second = begin(machine)
    second.do(f"open {name} write 20")
    assert len(second.do("list").split()) == count
    for address in second.do("list").split():
        second.do(f"free {address.partition(':')[0]}")
    second.do("commit")
    assert second.do("facts").split()[1] == "0"
