"""The C client's readers: they follow what is committed, become the writer, and are readers again."""

import pytest

from tests.integration.machine import Machine
from tests.native.c_client_drive import MIB, Drive
from tests.native.c_client_fixtures import Begin, machine_of_all, opened  # noqa: F401
from tests.native.test_c_client_breaks import kill_keepers

SIZE = 2 * MIB


def reading(machine: Machine, begin: Begin, name: str) -> Drive:
    drive = begin(machine)
    drive.do(f"open {name} read 0")
    return drive


def holds(drive: Drive) -> list[str]:
    return [each.partition(":")[0] for each in drive.do("list").split()]


# -- following ----------------------------------------------------------------------------------------------------------


def test_a_reader_follows_what_is_committed(machine: Machine, begin: Begin, name: str) -> None:
    """A refresh unmaps removed memory, maps new memory, and leaves the rest as it is; none of it can be written."""
    writer = opened(begin(machine), name)
    gone, stayed = writer.alloc(2, 1), writer.alloc(2, 2)
    writer.do("commit layout-1")
    reader = reading(machine, begin, name)
    assert reader.do("refresh") == "0"
    new = writer.alloc(4, 3)
    writer.do(f"free {gone}")
    writer.do("flush")
    assert reader.do("refresh") == "0", "nothing was committed"
    writer.do("commit layout-2")
    assert reader.do("refresh") == "3", "one came, one went, and the layout is another"
    assert (holds(reader), reader.do("layout")) == ([stayed, new], "layout-2")
    reader.do(f"check {stayed} {SIZE} 2")
    reader.do(f"check {new} {2 * SIZE} 3")
    assert reader.ask(f"check {gone} {SIZE} 1").error == "EFAULT"
    assert reader.ask(f"fill {new} {SIZE} 9").error == "EFAULT"
    assert reader.do("refresh") == "0"
    before = reader.do("descriptors")
    writer.do("commit layout-3")
    assert (reader.do("refresh"), reader.do("layout")) == ("1", "layout-3")
    assert reader.do("descriptors") == before


def test_what_took_the_place_of_another_is_noticed(machine: Machine, begin: Begin, name: str) -> None:
    """Also when the memory is of the same size, at the same address."""
    writer = opened(begin(machine), name)
    place = writer.alloc(2, 1)
    writer.do("commit")
    reader = reading(machine, begin, name)
    writer.do(f"free {place}")
    writer.do("commit")
    assert writer.alloc(2, 7) == place
    writer.do("commit")
    assert reader.do("refresh") == "2"
    reader.do(f"check {place} {SIZE} 7")


def test_what_moved_within_the_same_addresses_is_mapped_anew(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    places = [writer.alloc(2, seed) for seed in (1, 2, 3)]
    writer.do("commit")
    reader = reading(machine, begin, name)
    for each in places[:2]:
        writer.do(f"free {each}")
    writer.do("commit")
    assert writer.alloc(4, 8) == places[0]
    writer.do("commit")
    assert reader.do("refresh") == "3"
    assert holds(reader) == [places[0], places[2]]
    reader.do(f"check {places[0]} {2 * SIZE} 8")
    reader.do(f"check {places[2]} {SIZE} 3")


def test_more_than_one_page_is_followed(machine: Machine, begin: Begin, name: str) -> None:
    writer = begin(machine)
    writer.do(f"create {name} {600 * MIB}")
    writer.do(f"open {name} write 0")
    places = [writer.do(f"alloc {SIZE}") for _ in range(140)]
    writer.do("commit")
    reader = reading(machine, begin, name)
    for each in places[:-1:2]:
        writer.do(f"free {each}")
    places = [*places[1::2], *(writer.do(f"alloc {SIZE}") for _ in range(140))]
    writer.do("commit")
    assert reader.do("refresh") == str(70 + 140)
    assert holds(reader) == sorted(places)


@pytest.mark.slow
def test_a_reader_follows_the_loss_of_the_keeper_and_the_repair(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    place = writer.alloc(2, 1)
    writer.do("commit words")
    reader = reading(machine, begin, name)
    kill_keepers(machine)
    assert (reader.do("refresh"), holds(reader), reader.do("layout")) == ("2", [], "")
    writer.alloc(2, 2)
    writer.do("flush")
    assert (reader.do("refresh"), holds(reader), reader.do("layout")) == ("2", [place], "words")
    reader.do(f"check {place} {SIZE} 1")


# -- becoming the writer ------------------------------------------------------------------------------------------------


def test_a_promoted_reader_writes_and_the_one_before_cannot(machine: Machine, begin: Begin, name: str) -> None:
    """Its memory is where it was, it allocates and commits; what the other one puts is refused, and the next one finds ours."""
    before = opened(begin(machine), name)
    place = before.alloc(2, 1)
    before.do("commit words")
    drive = reading(machine, begin, name)
    before.do("replaced")
    assert drive.do("chosen") == "2"
    assert drive.ask(f"fill {place} {SIZE} 5").error == "EFAULT"
    drive.do("promoted 2")
    drive.do("promoted 2")
    drive.do(f"fill {place} {SIZE} 5")
    new = drive.alloc(2, 6)
    before.do(f"alloc {SIZE}")
    late = before.ask("flush")
    assert (late.error, "another has written since" in late.words) == ("ESTALE", True), late
    drive.do("commit")
    drive.do("close")
    after = begin(machine)
    after.do(f"open {name} write 20")
    assert (after.do("facts").split()[0], holds(after), after.do("layout")) == ("3", [place, new], "words")
    after.do(f"check {place} {SIZE} 5")
    after.do(f"check {new} {SIZE} 6")


def test_what_a_standby_has_made_writable_is_promoted_without_the_driver(
    machine: Machine, begin: Begin, name: str
) -> None:
    """It is a reader all the same: it cannot allocate, and what a refresh maps is read-only again until the next call."""
    before = opened(begin(machine), name)
    place = before.alloc(2, 1)
    before.do("commit words")
    drive = reading(machine, begin, name)
    assert [drive.do("writable 1"), drive.do("writable 1")] == ["0", "1"]
    drive.do(f"fill {place} {SIZE} 5")
    assert [drive.ask(line).error for line in ("alloc 1", "commit", "seal")] == ["EACCES"] * 3
    assert drive.do("writable 0") == "1"
    assert drive.ask(f"fill {place} {SIZE} 6").error == "EFAULT"
    drive.do("writable 1")
    new = before.alloc(2, 2)
    before.do("commit words")
    assert drive.do("refresh") == "1"
    assert drive.ask(f"fill {new} {SIZE} 7").error == "EFAULT", "what is new is not writable yet"
    drive.do("writable 1")
    drive.do(f"fill {new} {SIZE} 7")
    before.do("replaced")
    drive.do(f"promoted {drive.do('chosen')}")
    drive.do(f"fill {place} {SIZE} 8")
    assert drive.do("writable 0") == "1"
    drive.do(f"fill {place} {SIZE} 9")  # of a writer it changes nothing
    drive.do("commit words")
    drive.do("yielded")
    assert drive.ask(f"fill {place} {SIZE} 9").error == "EFAULT"


def test_what_is_sealed_meanwhile_cannot_be_written_by_a_standby(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    place = writer.alloc(2, 1)
    writer.do("commit words")
    drive = reading(machine, begin, name)
    drive.do("writable 1")
    writer.do("seal")
    drive.do("refresh")
    assert (drive.ask(f"fill {place} {SIZE} 5").error, drive.ask("writable 1").error) == ("EFAULT", "EROFS")


def test_a_writer_that_yields_is_a_reader_and_may_be_chosen_again(machine: Machine, begin: Begin, name: str) -> None:
    first = opened(begin(machine), name)
    place = first.alloc(2, 1)
    assert (first.ask("yielded").error, first.ask("refresh").error) == ("EBUSY", "EBUSY")
    first.do("commit words")
    first.do(f"free {first.do(f'alloc {SIZE}')}")
    assert first.do("refresh") == "0", "a writer may, when all is committed"
    second = reading(machine, begin, name)
    first.do("yielded")
    first.do("yielded")
    first.do("replaced")
    assert [first.ask(line).error for line in (f"fill {place} {SIZE} 2", "alloc 1", "commit")] == ["EFAULT", "EACCES", "EACCES"]
    second.do(f"promoted {second.do('chosen')}")
    new = second.alloc(2, 3)
    second.do("commit words")
    assert first.do("refresh") == "1", "what it had itself put is known"
    first.do(f"check {place} {SIZE} 1")
    first.do(f"check {new} {SIZE} 3")
    second.do("yielded")
    second.do("replaced")
    first.do(f"promoted {first.do('chosen')}")
    assert first.do("facts").split()[0] == "3"
    first.do(f"free {new}")
    first.do("commit")


def test_who_may_not_be_the_writer_is_not(machine: Machine, begin: Begin, name: str) -> None:
    writer = opened(begin(machine), name)
    writer.alloc(2, 1)
    writer.do("commit")
    reader = reading(machine, begin, name)
    old = reader.ask("promoted 0")
    assert (old.error, "generation 1" in old.words) == ("ESTALE", True)
    assert writer.ask("promoted 2").error == "ESTALE"
    writer.do("seal")
    assert reader.do("refresh") == "0"
    assert (reader.ask("promoted 2").error, writer.ask("promoted 2").error) == ("EROFS", "EROFS")
