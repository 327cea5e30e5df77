"""The desk: the incident of an observation, and the clients that were or were not in its domain then."""

import os
import signal

import pytest
import trio
import trio.testing

from mpsd.domains.rules.log_lines import ClientFault
from mpsd.host.process_exit import ProcessExit
from mpsd.host.processes import process_id
from mpsd.model.domain import DomainState
from mpsd.model.fault import Confidence, FaultClass, Source
from mpsd.model.process import ProcessId
from tests.unit.faults.desk_room import SERVER_PIDS, DeskRoom, running

KILLED = ProcessExit(signal.SIGKILL, 0)


@pytest.fixture
def room(tmp_path):
    return DeskRoom(tmp_path)


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
    room.lists(domain, ours.pid, 4_194_305)  # the second is not a process
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
    assert room.desk.domain_of_pid(SERVER_PIDS[0]) is first  # a server's
    assert room.desk.domain_of_pid(12345) is None


async def test_a_newcomer_that_moves_on_is_accused_of_nothing(room, autojump_clock):
    """As it was on an H200: two Xids name a client that was on its way in, the second when it is in another domain."""
    first, second = room.domain(), room.domain("d2")
    newcomer, culprit = room.arrive(first, 101, 102)
    room.xid(13, room.desk.domain_of_pid(101).name)
    room.move(newcomer, second)
    await trio.sleep(0.12)
    room.xid(13, room.desk.domain_of_pid(101).name)
    room.desk.hear(first, ClientFault(SERVER_PIDS[0], 101))
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


async def test_nor_is_it_of_where_another_with_its_pid_is(room, autojump_clock):
    first, second = room.domain(), room.domain("d2")
    (gone,) = room.arrive(first, 101)
    room.end(gone)
    room.move(ProcessId(101, 8), second)
    room.prove(gone)
    assert (room.last.domain, room.last.culprit, room.last.victims) == ("default", gone, ())


async def test_one_that_was_never_met_is_of_where_its_pid_is_listed(room, autojump_clock):
    room.lists(room.domain(), 4_194_305)
    room.prove(ProcessId(4_194_305, 7))
    assert room.last.domain == "default"


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
    pytest.param(ProcessExit(0, 1), FaultClass.UNKNOWN, id="a status"),
    pytest.param(ProcessExit(signal.SIGABRT, 0), FaultClass.UNKNOWN, id="abort, after an error of its own"),
    pytest.param(ProcessExit(signal.SIGSEGV, 0), FaultClass.UNKNOWN, id="a bug of its own"),
    pytest.param(KILLED, FaultClass.HOST, id="kill -9"),
    pytest.param(ProcessExit(signal.SIGTERM, 0), FaultClass.HOST, id="terminated"),
    pytest.param(None, FaultClass.HOST, id="nobody knows how"),
]


@pytest.mark.parametrize(("ending", "fault_class"), ENDINGS)
async def test_what_the_end_of_a_client_explains(room, autojump_clock, ending, fault_class):
    domain = room.domain()
    a, _ = room.arrive(domain, 101, 102)
    room.end(a, ending)
    room.end(a, KILLED)  # it ends once
    room.end(ProcessId(999, 7), KILLED)  # no table has it
    room.say_fault(domain)
    ends = [each for each in room.last.evidence if each.source is Source.PROCESS]
    assert [(each.process, each.fault_class) for each in ends] == [(a, fault_class)]
    assert room.last.fault_class is fault_class
