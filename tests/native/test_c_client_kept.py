"""The C client keeps the descriptors of adopted memory: the driver cannot export imported memory, and keepers die."""

import os
import resource

import pytest
from mpsd_client import calls

from tests.integration.machine import Machine
from tests.native.c_client_drive import MIB, Drive
from tests.native.c_client_fixtures import Begin, machine_of_all, opened  # noqa: F401
from tests.native.test_c_client_breaks import kill_keepers
from tests.native.test_c_client_restore import seen
from tests.native.test_c_client_terms import holds, reading

SIZE = 2 * MIB
FEW = 96  # a soft RLIMIT_NOFILE; what a process of the tests has open itself is far below its half


def contents(machine: Machine, begin: Begin, name: str) -> list[tuple[str, int]]:
    """Return the next holder's view: each address, and the byte that fills it."""
    drive = begin(machine)
    drive.do(f"open {name} read 0")
    bytes_of = range(1, 9)
    found = [
        (place, next((byte for byte in bytes_of if drive.ask(f"check {place} {SIZE} {byte}").result == 0), 0))
        for place in holds(drive)
    ]
    drive.do("close")
    return found


def open_now(drive: Drive) -> int:
    return int(drive.do("descriptors"))


def highest(drive: Drive) -> int:
    return max(int(each) for each in os.listdir(f"/proc/{drive.pid}/fd"))


def promoted(machine: Machine, begin: Begin, name: str) -> tuple[Drive, list[tuple[str, int]]]:
    """Return the present writer and its memory: two pieces from open, one from a refresh, and one that it allocated."""
    before = opened(begin(machine), name)
    pieces = [(before.alloc(2, 1), 1), (before.alloc(2, 2), 2)]
    before.do("commit words")
    drive = reading(machine, begin, name)
    pieces.append((before.alloc(2, 3), 3))
    before.do("commit words")
    assert drive.do("refresh") == "1"
    before.do("replaced")
    drive.do(f"promoted {drive.do('chosen')}")
    pieces.append((drive.alloc(2, 4), 4))
    drive.do("commit words")
    drive.do("state")
    before.kill()
    return drive, sorted(pieces)


def test_a_promoted_reader_gives_again_what_it_has_imported(machine: Machine, begin: Begin, name: str) -> None:
    """Twice, since the library keeps what it gave. The process that made the memory has ended long before."""
    drive, pieces = promoted(machine, begin, name)
    for generation in (3, 4):
        kill_keepers(machine)
        assert seen(machine, name) == (generation, 0, False)
        assert int(drive.do("restore")) > 0
        assert seen(machine, name) == (generation, 4, True)
    assert contents(machine, begin, name) == pieces


@pytest.mark.slow
def test_who_adopted_from_a_dead_writer_gives_it_again(machine: Machine, begin: Begin, name: str) -> None:
    """A third process adopts from the adopter: it imports what was imported and given again."""
    before = opened(begin(machine), name)
    pieces = [(before.alloc(2, 1), 1), (before.alloc(2, 2), 2)]
    before.do("commit words")
    for byte in (3, 4):
        before.kill()
        drive = begin(machine)
        drive.do(f"open {name} write 20")
        pieces.append((drive.alloc(2, byte), byte))
        drive.do("commit words")
        kill_keepers(machine)
        drive.do("restore")
        assert contents(machine, begin, name) == pieces
        before = drive


def test_who_has_yielded_and_is_chosen_again_gives_all(machine: Machine, begin: Begin, name: str) -> None:
    """Some of the memory is its own, some the other member's."""
    first = opened(begin(machine), name)
    pieces = [(first.alloc(2, 1), 1)]
    first.do("commit words")
    second = reading(machine, begin, name)
    for giver, taker, byte in ((first, second, 2), (second, first, 3)):
        giver.do("yielded")
        giver.do("replaced")
        taker.do("refresh")
        taker.do(f"promoted {taker.do('chosen')}")
        pieces.append((taker.alloc(2, byte), byte))
        taker.do("commit words")
    kill_keepers(machine)
    first.do("restore")
    assert contents(machine, begin, name) == pieces


def test_a_giving_that_fails_half_way_is_gone_on_with(machine: Machine, begin: Begin, name: str) -> None:
    """The quota is smaller for a while: neither a descriptor nor a piece is lost by that."""
    drive, pieces = promoted(machine, begin, name)
    before = open_now(drive)
    kill_keepers(machine)
    with machine.mpsd() as mpsd:
        arena = mpsd.ask(calls.arena_get(name)).id
        mpsd.ask(calls.arena_change(arena, capacity_bytes=SIZE))
        for _ in range(3):
            assert drive.ask("restore").error == "ENOSPC"
        mpsd.ask(calls.arena_change(arena, capacity_bytes=64 * MIB))
    drive.do("restore")
    assert (contents(machine, begin, name), open_now(drive)) == (pieces, before)


def test_few_descriptors_suffice_to_give_much(machine: Machine, begin: Begin, name: str) -> None:
    """The program has nearly all of its descriptors open: the library gives as many as it can open, and then the next."""
    drive, pieces = promoted(machine, begin, name)
    kill_keepers(machine)
    before = open_now(drive)
    resource.prlimit(drive.pid, resource.RLIMIT_NOFILE, (highest(drive) + 2, FEW))
    drive.do("restore")
    resource.prlimit(drive.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
    assert (open_now(drive), contents(machine, begin, name)) == (before, pieces)


def test_one_descriptor_is_held_of_each_piece_that_came_and_none_stays(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    places = [writer.alloc(2, 1) for _ in range(5)]
    writer.do("commit")
    assert writer.do("descriptors") == begin(machine).do("descriptors"), "what one has made oneself can be exported"
    drive = begin(machine)
    for _ in range(3):
        before = open_now(drive)
        drive.do(f"open {name} read 0")
        assert open_now(drive) == before + 5
        writer.do(f"free {places.pop()}")
        writer.do("commit")
        assert (drive.do("refresh"), open_now(drive)) == ("1", before + 4)
        assert (drive.do("refresh"), open_now(drive)) == ("0", before + 4)
        places.append(writer.alloc(2, 1))
        writer.do("commit")
        assert (drive.do("refresh"), open_now(drive)) == ("1", before + 5)
        drive.do("fork 5")
        drive.do("close")
        assert open_now(drive) == before
    writer.do("close")
    drive.do(f"open {name} write 20")
    for count, place in enumerate(places, 1):  # committed or not: who frees holds it no longer
        drive.do(f"free {place}")
        assert open_now(drive) == before + 5 - count
    drive.do("commit")
    drive.do("forget")
    assert open_now(drive) == before


def test_nothing_is_held_of_a_sealed_arena(machine: Machine, begin: Begin, name: str) -> None:
    """A sealed arena never gets another writer, so its memory is never given again."""
    opened(begin(machine), name).alloc(2, 1)
    made = begin(machine)
    alone = open_now(made)
    made.do(f"create {name}-2 {64 * MIB}")
    made.do(f"open {name}-2 write 0")
    place = made.alloc(2, 7)
    made.do("commit")
    made.do("close")
    made.do(f"open {name}-2 write 0")
    reader = begin(machine)
    reader.do(f"open {name}-2 read 0")
    assert (open_now(made), open_now(reader)) == (alone + 1, alone + 1)
    made.do("seal")
    assert open_now(made) == alone
    assert (reader.do("refresh"), open_now(reader)) == ("0", alone)
    late = begin(machine)
    late.do(f"open {name}-2 read 0")
    assert open_now(late) == alone
    late.do(f"check {place} {SIZE} 7")


def test_the_program_has_half_of_its_descriptors_for_itself(machine: Machine, begin: Begin, name: str) -> None:
    """Memory whose descriptor is not kept is mapped all the same; only giving it again fails, with the reason."""
    writer = begin(machine)
    writer.do(f"create {name} {400 * MIB}")
    writer.do(f"open {name} write 0")
    for _ in range(FEW):
        writer.do(f"alloc {SIZE}")
    writer.do("commit words")
    drive = begin(machine)
    resource.prlimit(drive.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
    before = open_now(drive)
    assert before < FEW // 4
    drive.do(f"open {name} read 0")
    assert (before < open_now(drive), highest(drive) < FEW // 2, len(holds(drive))) == (True, True, FEW)
    writer.do("replaced")
    drive.do(f"promoted {drive.do('chosen')}")
    kill_keepers(machine)
    refused = drive.ask("restore")
    assert (refused.error, "cuMemExportToShareableHandle" in refused.words) == ("EIO", True), refused
    drive.do("forget")
    assert open_now(drive) == before
