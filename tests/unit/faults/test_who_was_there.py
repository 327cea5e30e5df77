"""The incidents: the incident of an observation, and the clients that were or were not in its domain then."""

import os
import signal
from collections import Counter
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.domains.rules.log_lines import ClientFault, ContextOpened
from mpsd.host.process_exit import ProcessExit
from mpsd.host.processes import process_id
from mpsd.model.domain import DomainState
from mpsd.model.fault import Confidence, FaultClass, Source
from mpsd.model.process import ProcessId
from tests.unit.faults.incident_world import SERVER_PIDS, IncidentWorld, running

KILLED = ProcessExit(signal.SIGKILL, 0)


@pytest.fixture
def world(tmp_path):
    return IncidentWorld(tmp_path)


@pytest.mark.parametrize(("seconds", "is_counted"), [(5.9, True), (6.1, False)])
async def test_who_has_just_gone_was_there(world, autojump_clock, seconds, is_counted):
    domain = world.domain()
    a, b = world.arrive(domain, 101, 102)
    world.end(b)
    await trio.sleep(seconds)
    world.say_fault(domain)
    assert world.last.suspects == ((a, b) if is_counted else ())
    assert world.last.culprit == (None if is_counted else a)


async def test_a_process_that_has_only_connected_was_not_there(world, autojump_clock):
    """It has no context.  Thousands of one user's were stored with each fault, a megabyte."""
    domain = world.domain()
    _, listed, attached, logged = world.arrive(domain, 101, 102, 103, 104)
    domain.attach(attached)
    world.lists(domain, listed.pid)
    domain.hear(ContextOpened(next(iter(domain.servers)), logged.pid))
    await trio.sleep(60)
    new = world.arrive(domain, 105)[0]
    world.forget_absent()
    world.say_fault(domain)
    assert world.last.suspects == (listed, attached, logged, new)


async def test_of_thousands_who_may_have_a_channel_few_were_there(world, autojump_clock):
    """A process has one to its end, as far as mpsd knows, once it has passed a descriptor, or an earlier mpsd placed it."""
    domain = world.domain()
    for each in world.arrive(domain, *range(1000, 2000)):
        domain.attach(each)
    listed, logged = world.arrive(domain, 2001, 2002)
    world.lists(domain, listed.pid)
    domain.hear(ContextOpened(next(iter(domain.servers)), logged.pid))
    world.say_fault(domain)
    assert len(world.last.suspects) == 256
    assert {listed, logged} <= set(world.last.suspects)


async def test_who_went_before_its_servers_were_renewed_was_not_there(world, autojump_clock):
    domain = world.domain()
    _, gone = world.arrive(domain, 101, 102)
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await world.turn(domain, DomainState.FAULT)
        world.end(gone)
        await world.turn(domain, DomainState.RECYCLING, DomainState.READY)
        await trio.sleep(1)
        world.say_fault(domain)
        nursery.cancel_scope.cancel()
    assert world.last.culprit == ProcessId(101, 7)


async def test_clients_that_came_past_mpsd_are_known(world, autojump_clock):
    """Without root, only the domain's server knows them; they are asked about while they live."""
    domain, one = world.domain(), process_id(os.getppid())
    world.lists(domain, one.pid, 4_194_305)  # the second is not a process
    world.say_fault(domain)
    assert world.last.culprit == one
    assert world.last.party(one).program == f"p{one.pid}"


@pytest.mark.parametrize("with_seen", [False, True], ids=["alone", "beside one that is seen"])
async def test_a_client_of_another_pid_namespace_is_nobody(world, autojump_clock, with_seen):
    """Its server lists mpsd's own pid: mpsd convicted itself of the client's fault, and sent itself SIGKILL."""
    domain = world.domain()
    if with_seen:
        world.arrive(domain, 101)
    world.lists(domain, os.getpid(), *([101] if with_seen else []))
    world.say_fault(domain)
    assert world.last.culprit is None
    assert os.getpid() not in {each.pid for each in (*world.last.suspects, *world.last.victims)}


async def test_they_are_known_before_anything_happens(world, autojump_clock):
    domain = world.domain()
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        world.lists(domain, os.getppid())
        world.pool.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert world.incidents.parties.find(process_id(os.getppid())) is not None
        nursery.cancel_scope.cancel()


async def test_an_ended_client_is_there_for_as_long_as_its_server_lists_it(world, autojump_clock):
    """A child of it has its connection, and its GPU work goes on.  mpsd convicted and killed the process, of any user, that got
    the pid since: here our parent's."""
    domain = world.domain()
    ended, other = ProcessId(os.getppid(), 7), ProcessId(101, 7)
    world.move(ended, domain)
    domain.admit(ended)
    world.lists(domain, ended.pid)
    world.end(ended)
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        for _ in range(4):
            await trio.sleep(30)
            world.pool.notify()
        world.move(other, domain)
        world.end(other)  # ended ones are forgotten after a minute, when another one ends
        await trio.sleep(7)
        world.say_fault(domain)
        nursery.cancel_scope.cancel()
    assert world.last.culprit == ended
    assert world.last.party(ended).program == f"p{ended.pid}"


async def test_a_client_with_the_pid_of_an_ended_one_is_where_it_was_placed(world, autojump_clock):
    first, second = world.domain(), world.domain("d2")
    ended, alive = ProcessId(101, 7), ProcessId(101, 8)
    world.move(ended, first)
    first.admit(ended)
    world.lists(first, 101)
    world.end(ended)
    world.move(alive, second)
    await trio.sleep(7)
    world.say_fault(first)
    assert world.last.culprit == ended


async def test_a_record_of_a_process_with_the_pid_of_an_ended_client_is_not_of_its_domain(world, autojump_clock):
    """A user whose process got the pid of an ended client, which a child keeps listed, ended its domain's services so."""
    domain = world.domain()
    ended, other = ProcessId(101, 7), ProcessId(101, 8)
    world.move(ended, domain)
    domain.admit(ended)
    world.lists(domain, 101)
    world.end(ended)
    world.see(Source.KMOD, process=other, is_proof=True, fault_class=FaultClass.MMU)
    assert not domain.is_ill
    assert {each.domain for each in world.told} == {""}


async def test_who_has_moved_is_not_moved_back_by_the_list_of_where_it_was(world, autojump_clock):
    """The former server still lists it; its second Xid is of where it was, and it is where it is."""
    first, second = world.domain(), world.domain("d2")
    moved, *_ = world.arrive(first, 101, 102)
    world.move(moved, second)
    world.lists(first, 101, 102)
    for _ in range(3):
        world.say_fault(first)
        world.say_fault(second)
    assert world.incidents.parties.domain_of(moved) == "d2"
    assert world.incidents.domain_of_pid(101) is first


@pytest.mark.parametrize(("source", "closes"), [(Source.CORE_DUMP, False), (Source.KMOD, True)])
async def test_a_dump_that_its_author_can_forge_closes_no_domain(world, autojump_clock, source, closes):
    """With one false dump after the other a client kept the newcomers of all users out of their domain."""
    domain = world.domain()
    (client, _) = world.arrive(domain, 101, 102)
    world.see(source, process=client, is_proof=True, fault_class=FaultClass.SM)
    assert domain.is_ill is closes


async def test_an_xid_of_who_has_just_moved_is_of_where_it_was(world, autojump_clock):
    first, second = world.domain(), world.domain("d2")
    (moved,) = world.arrive(first, 101)
    assert world.incidents.domain_of_pid(101) is first
    first.suspect(3.0)
    world.move(moved, second)
    await trio.sleep(1.9)
    assert world.incidents.domain_of_pid(101) is first
    await trio.sleep(0.2)
    assert world.incidents.domain_of_pid(101) is second
    assert world.incidents.domain_of_pid(SERVER_PIDS[0]) is first  # a server's
    assert world.incidents.domain_of_pid(12345) is None


async def test_an_xid_of_who_has_no_context_in_a_contained_domain_is_not_of_it(world, autojump_clock):
    """It ended the sentinel there, and so all clients: one that was only placed there can fault elsewhere, even past MPS."""
    first, second = world.domain(), world.domain("d2")
    moved, placed, client, opened = world.arrive(first, 101, 102, 103, 104)
    world.lists(first, client.pid)
    first.contexts = {SERVER_PIDS[0]: Counter([opened.pid])}
    first.state = DomainState.CONTAINED
    world.move(moved, second)
    await trio.sleep(1)
    assert world.incidents.domain_of_pid(moved.pid) is second
    assert world.incidents.domain_of_pid(placed.pid) is None
    for pid in (client.pid, opened.pid, SERVER_PIDS[0]):
        assert world.incidents.domain_of_pid(pid) is first


async def test_an_xid_of_who_is_a_member_only_is_not_of_the_domain(world, autojump_clock):
    """By a memory fault past MPS it had the clients of another user, who had the domain since, taken for lost: mpsd killed
    services' actives at work, and so ended all others there."""
    domain = world.domain()
    (idle,) = world.arrive(domain, 101)
    assert world.incidents.domain_of_pid(idle.pid) is domain  # on its way in
    await trio.sleep(11)
    with domain.handshake(idle):
        world.forget_absent()
        assert world.incidents.domain_of_pid(idle.pid) is domain
    await trio.sleep(11)
    world.forget_absent()
    assert world.incidents.domain_of_pid(idle.pid) is None


@pytest.mark.parametrize(("seconds", "is_counted"), [(11, False), (9, True)])
async def test_an_xid_of_who_was_in_a_domain_is_not_of_it(world, autojump_clock, seconds, is_counted):
    """It had only connected to it before.  Where that domain was silent, as beside a frozen client, it moved, met a memory
    fault, and had the clients there taken for lost."""
    first, second = world.domain(), world.domain("d2")
    idle, client = world.arrive(first, 101, 201)
    first.attach(client)
    await trio.sleep(seconds)
    world.lists(first, client.pid)
    world.forget_absent()
    first.silenced.set()
    world.move(idle, second)
    assert world.incidents.domain_of_pid(idle.pid) is (first if is_counted else second)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_proof_against_who_was_placed_there_once_ends_nothing_there(world, autojump_clock, has_ended):
    """mpsd listens to its VA spaces, also to one past MPS.  Its fault there is its own, and of no domain of another user."""
    domain = world.domain()
    idle, client = world.arrive(domain, 101, 201)
    told = []
    world.incidents.observed.subscribe(lambda seen: told.append((seen.domain, seen.process)))
    domain.attach(client)
    world.prove(idle, domain=domain.name)
    await trio.sleep(11)
    world.forget_absent()
    if has_ended:
        world.end(idle)
    world.prove(idle, domain=domain.name)
    world.prove(client, domain=domain.name)
    world.see(Source.PROCESS, domain.name, process=idle, fault_class=FaultClass.HOST)
    assert told == [("default", idle), ("", idle), ("default", client), ("", idle)]


async def test_an_xid_that_names_the_sentinels_client_is_of_its_domain(world):
    """It has the oldest context, and the driver names that one's process: the fault was one of no domain."""
    domain = world.domain()
    domain.sentinel = SimpleNamespace(pids=frozenset({77}))
    assert world.incidents.domain_of_pid(77) is domain
    assert world.incidents.domain_of_pid(78) is None


async def test_a_newcomer_that_moves_on_is_accused_of_nothing(world, autojump_clock):
    """As it was on an H200: two Xids name a client that was on its way in, the second when it is in another domain."""
    first, second = world.domain(), world.domain("d2")
    newcomer, culprit = world.arrive(first, 101, 102)
    world.xid(13, world.incidents.domain_of_pid(101).name)
    world.move(newcomer, second)
    await trio.sleep(0.12)
    world.xid(13, world.incidents.domain_of_pid(101).name)
    world.incidents.hear(first, ClientFault(SERVER_PIDS[0], 101))
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert {each.domain for each in world.told} == {"default"}
    assert (world.last.is_settled, world.last.culprit, world.last.suspects) == (True, None, (newcomer, culprit))


async def test_an_xid_of_a_gpu_that_a_domain_does_not_use_is_not_of_it(world, autojump_clock):
    world.arrive(world.domain(gpus=("GPU-b",)), 101)
    world.xid(13, "default")
    assert world.told == []  # it waits for an incident of its own GPU
    world.xid(13, "default", gpu="GPU-b")
    assert world.last.xids == (13,)


async def test_of_mig_devices_the_kernel_names_the_whole_gpu(world, autojump_clock):
    world.arrive(world.domain(gpus=("MIG-1",)), 101)
    world.xid(13, "default")
    assert world.last.domain == "default"


async def test_a_proof_against_one_that_has_ended_is_of_where_it_was(world, autojump_clock):
    domain = world.domain()
    a, b = world.arrive(domain, 101, 102)
    world.end(a)
    world.prove(a)
    assert (world.last.domain, world.last.culprit, world.last.victims) == ("default", a, (b,))


async def test_nor_is_it_of_where_another_with_its_pid_is(world, autojump_clock):
    first, second = world.domain(), world.domain("d2")
    (gone,) = world.arrive(first, 101)
    world.end(gone)
    world.move(ProcessId(101, 8), second)
    world.prove(gone)
    assert (world.last.domain, world.last.culprit, world.last.victims) == ("default", gone, ())


async def test_one_that_was_never_met_is_of_where_its_pid_is_listed(world, autojump_clock):
    world.lists(world.domain(), 4_194_305)
    world.prove(ProcessId(4_194_305, 7))
    assert world.last.domain == "default"


async def test_who_is_watched_only_since_mpsd_began_is_not_accused_at_first(tmp_path, autojump_clock):
    for seconds, confidence in ((5.9, Confidence.UNKNOWN), (6.1, Confidence.ALONE)):
        path = tmp_path / str(seconds)
        path.mkdir()
        world = IncidentWorld(path, watches_since=IncidentWorld.now_ns())
        domain = world.domain()
        world.arrive(domain, 101)
        await trio.sleep(seconds)
        world.say_fault(domain)
        assert world.last.confidence is confidence


async def test_a_domain_that_is_found_in_fault_accuses_nobody(world, autojump_clock):
    domain = world.domain()
    world.arrive(domain, 101)
    domain.state = DomainState.FAULT
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await trio.testing.wait_all_tasks_blocked()
        world.say_fault(domain)
        nursery.cancel_scope.cancel()
    assert world.last.confidence is Confidence.UNKNOWN


ENDINGS = [
    pytest.param(ProcessExit(0, 1), FaultClass.UNKNOWN, id="a status"),
    pytest.param(ProcessExit(signal.SIGABRT, 0), FaultClass.UNKNOWN, id="abort, after an error of its own"),
    pytest.param(ProcessExit(signal.SIGSEGV, 0), FaultClass.UNKNOWN, id="a bug of its own"),
    pytest.param(KILLED, FaultClass.HOST, id="kill -9"),
    pytest.param(ProcessExit(signal.SIGTERM, 0), FaultClass.HOST, id="terminated"),
    pytest.param(None, FaultClass.HOST, id="nobody knows how"),
]


@pytest.mark.parametrize(("ending", "fault_class"), ENDINGS)
async def test_what_the_end_of_a_client_explains(world, autojump_clock, ending, fault_class):
    domain = world.domain()
    a, _ = world.arrive(domain, 101, 102)
    world.end(a, ending)
    world.end(a, KILLED)  # it ends once
    world.end(ProcessId(999, 7), KILLED)  # no table has it
    world.say_fault(domain)
    ends = [each for each in world.last.evidence if each.source is Source.PROCESS]
    assert [(each.process, each.fault_class) for each in ends] == [(a, fault_class)]
    assert world.last.fault_class is fault_class
