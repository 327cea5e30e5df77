"""The desk: what makes a domain suspected, what it publishes and stores, and the cases against clients."""

import time

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import NoSuchFault
from mpsd.model.blame import BlameKind
from mpsd.model.domain import DomainState
from mpsd.model.fault import TEXT_CHARACTERS, FirstError, Source
from mpsd.model.process import ProcessId
from tests.unit.faults.desk_room import SETTINGS, DeskRoom, key, running


@pytest.fixture
def room(tmp_path):
    return DeskRoom(tmp_path)


# -- suspicion -----------------------------------------------------------------------------------------------------------


SUSPICIOUS = [
    pytest.param({"source": Source.KERNEL_LOG, "xid": 13, "domain": "default"}, True, id="an Xid that ends servers"),
    pytest.param({"source": Source.KERNEL_LOG, "xid": 63, "domain": "default"}, False, id="another"),
    pytest.param({"source": Source.UVM_EVENTS, "process": ProcessId(101, 7), "is_proof": True}, True, id="a proof"),
    pytest.param(
        {"source": Source.KMOD, "process": ProcessId(101, 7), "is_proof": True, "is_contained": True}, False, id="contained"
    ),
    pytest.param({"source": Source.REPORT, "process": ProcessId(101, 7)}, False, id="a client's word"),
]


@pytest.mark.parametrize(("facts", "is_suspected"), SUSPICIOUS)
async def test_what_makes_a_domain_suspected(room, autojump_clock, facts, is_suspected):
    domain = room.domain()
    room.arrive(domain, 101)
    room.see(**facts)
    assert domain.is_ill is is_suspected


async def test_a_suspected_domain_is_let_go_after_two_seconds_and_whoever_waits_is_woken(room, autojump_clock):
    """Each in its own time, however often another is suspected."""
    first, second = room.domain(), room.domain("d2")
    woken = {}

    async def wait_for(domain):
        while domain.is_ill:
            await room.pool.changed()
        woken[domain.name] = round(trio.current_time(), 3)

    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.testing.wait_all_tasks_blocked()
        room.xid(13, "default")
        for _ in range(2):
            await trio.sleep(0.7)
            room.xid(13, "d2")
        nursery.start_soon(wait_for, first)
        nursery.start_soon(wait_for, second)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert woken == {"default": pytest.approx(2.0, abs=0.02), "d2": pytest.approx(3.4, abs=0.02)}


async def test_who_must_not_wait_is_told_before_the_rest_is_done_and_in_order(room, autojump_clock):
    """As a standby that takes over: an incident is stored, which takes as long as all the rest."""
    room.domain()
    room.desk.observed.subscribe(lambda seen: seen.xid == 43 and room.outbox.answer_first())
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.testing.wait_all_tasks_blocked()
        room.xid(43, "default")
        room.xid(13, "default")
        assert room.told == []
        await trio.sleep(0.002)
        assert [incident.xids for incident in room.told] == [(43,), (43, 13)]
        room.xid(31, "default")
        assert room.last.xids == (43, 13, 31)
        nursery.cancel_scope.cancel()


async def test_a_domain_that_is_known_to_fault_is_not_suspected_as_well(room, autojump_clock):
    domain = room.domain()
    domain.state = DomainState.FAULT
    room.xid(13, "default")
    assert domain.suspect_until < 0


# -- publishing and storing -----------------------------------------------------------------------------------------------


async def test_a_proven_fault_is_told_once_from_its_beginning_to_its_end(room, autojump_clock):
    """A settled incident that a late dump changes is not settled again."""
    domain = room.domain()
    a, b = room.arrive(domain, 101, 102)
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        room.prove(a, address=0x1000)
        room.say_fault(domain)
        await room.turn(domain, DomainState.FAULT, DomainState.RECYCLING, DomainState.READY)
        await trio.sleep(5)
        assert room.last.is_settled
        count = len(room.told)
        room.see(Source.CORE_DUMP, process=b, clears=True)
        nursery.cancel_scope.cancel()
    assert len(room.told) == count + 1
    assert room.topics == ["fault.opened", "fault.culprit", "blame.convicted", "fault.settled"]
    assert [facts["number"] for topic, facts in room.events if topic.startswith("fault.")] == [1, 1, 1]
    assert [each.revision for each in room.told] == list(range(1, count + 2))


async def test_without_fresh_servers_it_is_settled_after_thirty_seconds_of_silence(room, autojump_clock):
    domain = room.domain()
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        room.say_fault(domain)
        await trio.sleep(29)
        assert not room.last.is_settled
        await trio.sleep(2)
        assert room.last.is_settled
        nursery.cancel_scope.cancel()


async def test_a_domain_that_has_gone_is_waited_for_no_longer(room, autojump_clock):
    domain = room.domain("d2")
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.testing.wait_all_tasks_blocked()
        room.say_fault(domain)
        del room.pool.domains["d2"]
        room.pool.notify()
        await trio.sleep(3.1)
        assert room.last.is_settled
        nursery.cancel_scope.cancel()


async def test_what_was_told_is_kept(room, autojump_clock):
    """The first mpsd was killed: what it had not finished is settled, what it decided stays, and numbers go on."""
    domain = room.domain()
    (a,) = room.arrive(domain, 101)
    room.prove(a)
    room.desk.note(room.last, "something")
    again = room.again()
    (left,) = again.desk.incidents(0)
    assert left == replace(room.last, revision=room.last.revision + 1, is_settled=True)
    assert left.deeds[0].text == "something"
    assert again.desk.incident(1) == left
    assert again.desk.key_of(a) == f"quarantine:{key(a)}"
    again.say_fault(again.domain())
    assert again.last.number == 2


async def test_older_incidents_are_asked_of_the_store(room, autojump_clock):
    for number in range(300):
        room.say_fault(room.domain(f"d{number}"))
    assert len(room.desk._recent) == 256
    assert room.desk.incident(1).domain == "d0"
    assert [each.number for each in room.desk.incidents_before(3)] == [2, 1]
    with pytest.raises(NoSuchFault):
        room.desk.incident(301)


async def test_what_a_full_disk_keeps_from_being_written_is_listed_all_the_same(room, autojump_clock):
    """Until mpsd ends, in its place, in its newest state, once."""
    numbers = []
    for disk_is_full in (0, 1, 0):
        room.store._db.execute(f"PRAGMA query_only={disk_is_full}")
        room.prove(*room.arrive(room.domain(f"d{len(numbers)}"), 101 + len(numbers)))
        numbers.append(room.last.number)
    room.store._db.execute("PRAGMA query_only=1")
    room.desk.note(room.told[0], "that much was done")
    first, second, third = numbers
    assert [each.number for each in room.desk.incidents(0)] == numbers
    assert [each.number for each in room.desk.incidents(first)] == [second, third]
    assert [each.number for each in room.desk.incidents_before(None)] == [third, second, first]
    assert [each.number for each in room.desk.incidents_before(second)] == [first]
    assert next(iter(room.desk.incidents(0))).deeds[-1].text == "that much was done"
    room.store._db.execute("PRAGMA query_only=0")
    room.desk.note(room.desk.incident(second), "there is room again")
    assert [each.number for each in room.store.incidents()] == numbers == [each.number for each in room.desk.incidents(0)]


async def test_an_incident_that_lasts_is_opened_once_however_many_come_and_go_meanwhile(room, autojump_clock):
    domain = room.domain()
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        room.say_fault(domain)
        for number in range(300):
            room.say_fault(room.domain("d2"))
            await trio.testing.wait_all_tasks_blocked()
            del room.pool.domains["d2"]
            room.pool.notify()
            await trio.sleep(4)
            room.xid(43, "default", text=str(number))
        await trio.sleep(40)
        nursery.cancel_scope.cancel()
    assert (room.last.number, room.last.is_settled) == (1, True)
    assert [facts["number"] for topic, facts in room.events if topic == "fault.opened"] == list(range(1, 302))


async def test_a_deed_of_an_incident_that_is_forgotten_changes_nothing(room, autojump_clock):
    room.say_fault(room.domain())
    incident, count = room.last, len(room.told)
    room.desk.note(replace(incident, number=77), "too late")
    assert len(room.told) == count


async def test_a_client_says_so_itself(room, autojump_clock):
    """It supports other evidence, and proves nothing alone."""
    domain = room.domain()
    (a,) = room.arrive(domain, 101)
    room.desk.report(a, FirstError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", kernel="k", text="x" * 1000))
    assert room.told == []
    room.say_fault(domain)
    (said,) = (each for each in room.last.evidence if each.source is Source.REPORT)
    assert (said.domain, said.process, said.kernel, len(said.text)) == ("default", a, "k", TEXT_CHARACTERS)
    assert said.text.startswith("CUDA_ERROR_ILLEGAL_ADDRESS xxx")


async def test_arrivals_and_ends_of_connections_are_passed_on(room, autojump_clock):
    seen = []
    room.desk.client_arrived.subscribe(lambda process, domain, is_new: seen.append((process.pid, domain.name, is_new)))
    room.desk.client_hung_up.subscribe(lambda process: seen.append(process.pid))
    domain = room.domain()
    room.arrive(domain, 101, 101)
    room.desk.hung_up(ProcessId(101, 7))
    assert seen == [(101, "default", True), (101, "default", False), 101]


# -- blame ---------------------------------------------------------------------------------------------------------------


async def test_suspects_are_placed_apart_and_who_is_convicted_waits(room, autojump_clock):
    domain = room.domain()
    a, b, c = room.arrive(domain, 101, 102, 103)
    room.say_fault(domain)
    assert room.topics == ["fault.opened", "blame.suspected"]
    assert len({room.desk.key_of(each) for each in (a, b, c)}) == 2
    room.prove(b)
    assert room.topics[2:] == ["fault.culprit", "blame.cleared", "blame.convicted"]
    assert [room.desk.key_of(each) for each in (a, b, c)] == ["", f"quarantine:{key(b)}", ""]
    assert room.desk.pause_of(b) == 0.0


async def test_other_settings_keep_convictions(room, autojump_clock):
    domain = room.domain()
    (a,) = room.arrive(domain, 101)
    room.prove(a)
    room.desk.configure(replace(SETTINGS, quarantine=False, crash_faults=1))
    assert room.desk.settings.crash_faults == 1
    assert room.desk.key_of(a) == ""
    assert room.desk.pause_of(a) > 0.5
    room.desk.configure(SETTINGS)
    assert room.desk.key_of(a) == f"quarantine:{key(a)}"
    assert room.again().desk.key_of(a) == f"quarantine:{key(a)}"


async def test_a_pardon_is_told_and_kept(room, autojump_clock):
    domain = room.domain()
    (a,) = room.arrive(domain, 101)
    room.prove(a)
    assert [(each.key, each.kind, each.case) for each in room.desk.standings()] == [(key(a), BlameKind.CONVICTED, 1)]
    assert room.desk.pardon(key(a)).kind is BlameKind.CONVICTED
    assert room.events[-1] == ("blame.released", {"key": key(a), "why": "pardoned"})
    assert (room.desk.key_of(a), list(room.desk.standings())) == ("", [])
    assert list(room.again().desk.standings()) == []
    with pytest.raises(NoSuchFault, match=r"p101"):
        room.desk.pardon(key(a))


async def test_a_pardon_gives_a_drained_gpu_back_and_wakes_who_waits_for_it(room, autojump_clock):
    room.pool.drain_gpu("GPU-a", "Xid 79")
    assert [(each.key, each.kind) for each in room.desk.standings()] == [("GPU-a", BlameKind.DRAINED)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.pool.changed)
        await trio.testing.wait_all_tasks_blocked()
        room.desk.pardon("GPU-a")
    assert (room.pool.drained, room.events) == ({}, [("gpu.restored", {"gpu": "GPU-a"})])


async def test_suspicion_ends_in_time(room, autojump_clock, monkeypatch):
    """Days of the calendar are not of the test's clock."""
    domain = room.domain()
    a, _ = room.arrive(domain, 101, 102)
    room.say_fault(domain)
    assert room.desk.key_of(a)
    later = time.time() + 1801
    monkeypatch.setattr("mpsd.faults.incidents.time.time", lambda: later)
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert room.topics[-1] == "blame.cleared"
    assert room.again().desk.key_of(a) == ""
