"""The desk: who is there, what is told and kept, who is suspected, and what an operator is shown."""

import os
import signal
import time
from dataclasses import replace

import pytest
import trio
import trio.testing

from mpsd.api.services import FirstError, StandingKind
from mpsd.domains.log_lines import ClientFault
from mpsd.errors import NoSuchFault
from mpsd.fault import TEXT_CHARACTERS, Confidence, FaultClass, Source
from mpsd.model import DomainState, ProcessId
from mpsd.processes import process_id
from mpsd.uvm.ending import Ending
from tests.unit.faults.desk_room import SETTINGS, DeskRoom, key

KILLED = Ending(signal.SIGKILL, 0)


@pytest.fixture
def room(tmp_path):
    return DeskRoom(tmp_path)


def running(room, nursery):
    nursery.start_soon(room.desk.run)


# -- who was there -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "is_counted"), [(5.9, True), (6.1, False)])
async def test_who_has_just_gone_was_there(room, autojump_clock, seconds, is_counted):
    domain = room.domain()
    a, b = room.arrive(domain, 101, 102)
    room.end(b)
    await trio.sleep(seconds)
    room.say_fault(domain)
    assert room.last.suspects == ((a, b) if is_counted else ())
    assert room.last.culprit == (None if is_counted else a)


async def test_who_went_before_its_servers_were_renewed_was_not_there(room, autojump_clock):
    domain = room.domain()
    _, gone = room.arrive(domain, 101, 102)
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await room.turn(domain, DomainState.FAULT)
        room.end(gone)
        await room.turn(domain, DomainState.RECYCLING, DomainState.READY)
        await trio.sleep(1)
        room.say_fault(domain)
        nursery.cancel_scope.cancel()
    assert room.last.culprit == ProcessId(101, 7)


async def test_clients_that_came_past_mpsd_are_known(room, autojump_clock):
    """Without root, only the domain's server knows them; they are asked about while they live."""
    domain, ours = room.domain(), process_id(os.getpid())
    room.lists(domain, ours.pid, 4_194_305)  # the second is no process
    room.say_fault(domain)
    assert room.last.culprit == ours
    assert room.last.party(ours).program == f"p{ours.pid}"


async def test_they_are_known_before_anything_happens(room, autojump_clock):
    domain = room.domain()
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        room.lists(domain, os.getpid())
        room.pool.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert room.desk.parties.find(process_id(os.getpid())) is not None
        nursery.cancel_scope.cancel()


async def test_who_has_moved_is_not_moved_back_by_the_list_of_where_it_was(room, autojump_clock):
    """The former server still lists it; its second Xid is of where it was, and it is where it is."""
    first, second = room.domain(), room.domain("d2")
    moved, *_ = room.arrive(first, 101, 102)
    room.move(moved, second)
    room.lists(first, 101, 102)
    for _ in range(3):
        room.say_fault(first)
        room.say_fault(second)
    assert room.desk.parties.domain_of(moved) == "d2"
    assert room.desk.domain_of_pid(101) is first


async def test_an_xid_of_who_has_just_moved_is_of_where_it_was(room, autojump_clock):
    first, second = room.domain(), room.domain("d2")
    (moved,) = room.arrive(first, 101)
    assert room.desk.domain_of_pid(101) is first
    room.move(moved, second)
    await trio.sleep(1.9)
    assert room.desk.domain_of_pid(101) is first
    await trio.sleep(0.2)
    assert room.desk.domain_of_pid(101) is second
    assert room.desk.domain_of_pid(9001) is first  # a server's
    assert room.desk.domain_of_pid(12345) is None


async def test_a_newcomer_that_moves_on_is_accused_of_nothing(room, autojump_clock):
    """As it was on an H200: two Xids name a client that was on its way in, the second when it is in another domain."""
    first, second = room.domain(), room.domain("d2")
    newcomer, culprit = room.arrive(first, 101, 102)
    room.xid(13, room.desk.domain_of_pid(101).name)
    room.move(newcomer, second)
    await trio.sleep(0.12)
    room.xid(13, room.desk.domain_of_pid(101).name)
    room.desk.hear(first, ClientFault(9001, 101))
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert {each.domain for each in room.told} == {"default"}
    assert (room.last.is_settled, room.last.culprit, room.last.suspects) == (True, None, (newcomer, culprit))


async def test_an_xid_of_a_gpu_that_a_domain_does_not_use_is_not_of_it(room, autojump_clock):
    room.arrive(room.domain(gpus=("GPU-b",)), 101)
    room.xid(13, "default")
    assert room.told == []  # it waits for an incident of its own GPU
    room.xid(13, "default", gpu="GPU-b")
    assert room.last.xids == (13,)


async def test_of_mig_devices_the_kernel_names_the_whole_gpu(room, autojump_clock):
    room.arrive(room.domain(gpus=("MIG-1",)), 101)
    room.xid(13, "default")
    assert room.last.domain == "default"


async def test_a_proof_against_one_that_has_ended_is_of_where_it_was(room, autojump_clock):
    domain = room.domain()
    a, b = room.arrive(domain, 101, 102)
    room.end(a)
    room.prove(a)
    assert (room.last.domain, room.last.culprit, room.last.victims) == ("default", a, (b,))


async def test_who_is_watched_only_since_mpsd_began_is_not_accused_at_first(tmp_path, autojump_clock):
    for seconds, confidence in ((5.9, Confidence.UNKNOWN), (6.1, Confidence.ALONE)):
        path = tmp_path / str(seconds)
        path.mkdir()
        room = DeskRoom(path, watches_since=DeskRoom.now_ns())
        domain = room.domain()
        room.arrive(domain, 101)
        await trio.sleep(seconds)
        room.say_fault(domain)
        assert room.last.confidence is confidence


async def test_a_domain_that_is_found_in_fault_accuses_nobody(room, autojump_clock):
    domain = room.domain()
    room.arrive(domain, 101)
    domain.state = DomainState.FAULT
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.testing.wait_all_tasks_blocked()
        room.say_fault(domain)
        nursery.cancel_scope.cancel()
    assert room.last.confidence is Confidence.UNKNOWN


ENDINGS = [
    pytest.param(Ending(0, 1), FaultClass.UNKNOWN, id="a status"),
    pytest.param(Ending(signal.SIGABRT, 0), FaultClass.UNKNOWN, id="abort, after an error of its own"),
    pytest.param(Ending(signal.SIGSEGV, 0), FaultClass.UNKNOWN, id="a bug of its own"),
    pytest.param(KILLED, FaultClass.HOST, id="kill -9"),
    pytest.param(Ending(signal.SIGTERM, 0), FaultClass.HOST, id="terminated"),
    pytest.param(None, FaultClass.HOST, id="nobody knows how"),
]


@pytest.mark.parametrize(("ending", "fault_class"), ENDINGS)
async def test_what_the_end_of_a_client_explains(room, autojump_clock, ending, fault_class):
    domain = room.domain()
    a, _ = room.arrive(domain, 101, 102)
    room.end(a, ending)
    room.end(a, KILLED)  # it ends once
    room.end(ProcessId(999, 7), KILLED)  # nobody has met it
    room.say_fault(domain)
    ends = [each for each in room.last.evidence if each.source is Source.PROCESS]
    assert [(each.process, each.fault_class) for each in ends] == [(a, fault_class)]
    assert room.last.fault_class is fault_class


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
        nursery.start_soon(wait_for, first)
        for _ in range(5):
            await trio.sleep(0.5)
            room.xid(13, "d2")
        nursery.start_soon(wait_for, second)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert woken == {"default": pytest.approx(2.0, abs=0.02), "d2": pytest.approx(4.5, abs=0.02)}


async def test_a_domain_that_is_known_to_fault_is_not_suspected_as_well(room, autojump_clock):
    domain = room.domain()
    domain.state = DomainState.FAULT
    room.xid(13, "default")
    assert domain.suspect_until < 0


# -- what is told and kept -----------------------------------------------------------------------------------------------


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


async def test_a_deed_of_an_incident_that_is_forgotten_changes_nothing(room, autojump_clock):
    room.say_fault(room.domain())
    incident, count = room.last, len(room.told)
    room.desk.note(replace(incident, number=77), "too late")
    assert len(room.told) == count


async def test_a_client_says_so_itself(room, autojump_clock):
    """It is evidence beside other evidence, and nothing without."""
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
    room.desk.on_arrival.append(lambda process, domain, is_new: seen.append((process.pid, domain.name, is_new)))
    room.desk.on_hang_up.append(lambda process: seen.append(process.pid))
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
    assert [(each.key, each.kind, each.case) for each in room.desk.standings()] == [(key(a), StandingKind.CONVICTED, 1)]
    assert room.desk.pardon(key(a)).kind is StandingKind.CONVICTED
    assert room.events[-1] == ("blame.released", {"key": key(a), "why": "pardoned"})
    assert (room.desk.key_of(a), list(room.desk.standings())) == ("", [])
    assert list(room.again().desk.standings()) == []
    with pytest.raises(NoSuchFault, match=r"p101"):
        room.desk.pardon(key(a))


async def test_a_pardon_gives_a_drained_gpu_back_and_wakes_who_waits_for_it(room, autojump_clock):
    room.pool.drain_gpu("GPU-a", "Xid 79")
    assert [(each.key, each.kind) for each in room.desk.standings()] == [("GPU-a", StandingKind.DRAINED)]
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
    monkeypatch.setattr("mpsd.faults.desk.time.time", lambda: later)
    async with trio.open_nursery() as nursery:
        running(room, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert room.topics[-1] == "blame.cleared"
    assert room.again().desk.key_of(a) == ""
