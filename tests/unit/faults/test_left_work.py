"""GPU work of a client that has ended, which any process with its descriptors keeps running: whom its fault accuses."""

import signal
import subprocess

import pytest
import trio

from mpsd.domains.domain import Domain
from mpsd.host.process_exit import ProcessExit
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.fault import Confidence, FaultClass, Party, Source
from mpsd.model.process import ProcessId
from tests.running import running
from tests.unit.faults.incident_world import SERVER_PIDS, IncidentWorld

ATTACKER, USER = 1001, 1000


def of_users(process: ProcessId) -> Party:
    return Party(process, ATTACKER if process.pid < 200 else USER, "train")


async def comes_after(world: IncidentWorld, domain: Domain, ended: int) -> ProcessId:
    """Return a client that arrives a minute after the end of another one, which had a channel to the server."""
    [gone] = world.arrive(domain, ended)
    world.incidents.served(gone, domain)
    world.end(gone)
    await trio.sleep(60)
    [victim] = world.arrive(domain, 201)
    return victim


@pytest.mark.parametrize(
    ("ended", "victims", "confidence"),
    [
        pytest.param(101, (201,), Confidence.UNKNOWN, id="another user's, and one client"),
        pytest.param(101, (201, 202), Confidence.UNKNOWN, id="and two of one program"),
        pytest.param(200, (201,), Confidence.ALONE, id="one's own"),
        pytest.param(200, (201, 202), Confidence.SUSPECTED, id="one's own, and two of one program"),
    ],
)
async def test_no_client_is_convicted_of_what_an_ended_one_of_another_user_may_have_done(
    tmp_path, autojump_clock, ended, victims, confidence
):
    """The server does not list it, and holders of its descriptors choose the time: when they close them in the middle of a
    kernel, all clients end (measured).  The one client that was left was convicted, and ended.
    """
    world = IncidentWorld(tmp_path, describe=of_users)
    domain = world.domain()
    async with running(world.incidents.run):
        [gone] = world.arrive(domain, ended)
        world.lists(domain, gone.pid)
        await trio.sleep(1)
        world.lists(domain)
        world.end(gone)
        await trio.sleep(60)
        there = world.arrive(domain, *victims)
        world.lists(domain, *victims)
        await trio.sleep(60)
        world.xid(31, domain.name)
        world.say_fault(domain)
        await trio.sleep(60)
    assert world.last.is_settled
    assert world.last.confidence is confidence
    is_accused = confidence is not Confidence.UNKNOWN
    assert world.last.suspects == (tuple(there) if confidence is Confidence.SUSPECTED else ())
    assert ("blame.convicted" in world.topics) is is_accused


@pytest.mark.parametrize("is_contained", [False, True], ids=["a fault", "an exception that a sentinel contains"])
@pytest.mark.parametrize(("ended", "is_convicted"), [(101, False), (200, True)], ids=["another user's", "one's own"])
async def test_one_that_is_only_connecting_is_not_convicted_of_it_either(
    tmp_path, autojump_clock, ended, is_convicted, is_contained
):
    """Without a channel yet it did not count among those that the server had served: these were of one user, the attacker."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain = world.domain()
    async with running(world.incidents.run):
        victim = await comes_after(world, domain, ended)
        if is_contained:
            world.see(Source.SENTINEL, domain.name, process=victim, is_proof=True, fault_class=FaultClass.SM, is_contained=True)
        else:
            world.xid(31, domain.name)
            world.say_fault(domain)
        await trio.sleep(60)
    assert world.last.culprit == (victim if is_convicted else None)
    assert ("blame.convicted" in world.topics) is is_convicted


async def test_one_that_a_server_lists_only_after_the_fault_is_not_convicted_of_it(tmp_path, autojump_clock):
    world = IncidentWorld(tmp_path, describe=of_users)
    domain = world.domain()
    async with running(world.incidents.run):
        [gone] = world.arrive(domain, 101)
        world.incidents.served(gone, domain)
        world.end(gone)
        await trio.sleep(60)
        world.xid(31, domain.name)
        [late] = world.arrive(domain, 201)
        world.lists(domain, late.pid)
        world.say_fault(domain)
        await trio.sleep(60)
    assert world.last.culprit is None
    assert "blame.convicted" not in world.topics


@pytest.mark.parametrize(
    ("is_adopted", "confidence"), [(True, Confidence.UNKNOWN), (False, Confidence.ALONE)], ids=["of before", "of this mpsd"]
)
async def test_none_is_convicted_alone_in_a_server_that_is_older_than_mpsd(tmp_path, autojump_clock, is_adopted, confidence):
    """A restarted mpsd cannot know whose clients its server has served, and took the one that it found for the culprit."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain = world.domain()
    domain.state = DomainState.STARTING
    async with running(world.incidents.run):
        [victim] = world.arrive(domain, 201)
        world.lists(domain, victim.pid)
        domain.is_adopted = is_adopted
        await world.turn(domain, DomainState.STARTING)
        domain.is_adopted = False
        await world.turn(domain, DomainState.READY)
        await trio.sleep(60)
        world.xid(31, domain.name)
        world.say_fault(domain)
        await trio.sleep(60)
    assert world.last.confidence is confidence


@pytest.mark.parametrize(("ended", "is_proven"), [(101, False), (200, True)], ids=["another user's", "one's own"])
async def test_a_sentinel_convicts_no_client_of_what_an_ended_one_of_another_user_may_have_done(
    tmp_path, autojump_clock, ended, is_proven
):
    """What it left can execute at an address that only the client has mapped that is there by now: that one was killed."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain = world.domain()
    async with running(world.incidents.run):
        victim = await comes_after(world, domain, ended)
        world.lists(domain, victim.pid)
        exception = {"fault_class": FaultClass.SM, "is_contained": True, "pc": 0x200000000}
        world.see(Source.SENTINEL, domain.name, **exception)
        world.see(Source.SENTINEL, domain.name, process=victim, is_proof=True, **exception)
        await trio.sleep(60)
    assert world.last.culprit == (victim if is_proven else None)
    assert world.last.confidence is (Confidence.PROVEN if is_proven else Confidence.UNKNOWN)
    assert ("blame.convicted" in world.topics) is is_proven


async def fault(world: IncidentWorld, domain: Domain, killed: ProcessId | None) -> None:
    """Let the domain have a fault as this process is killed, if it is, and let the incident settle."""
    if killed is not None:
        world.end(killed, ProcessExit(signal.SIGKILL, 0))
    world.xid(31, domain.name)
    world.say_fault(domain)
    await trio.sleep(60)


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("is_new_server", [False, True])
async def test_who_was_placed_there_once_excuses_no_client_of_another_user(tmp_path, autojump_clock, is_new_server, has_ended):
    """For as long as it lived, no client that was alone there was convicted, nor, for one mere connection to an idle domain,
    as long as the server there lived; where it was killed at the time of a fault, the fault was of the class host, and none was
    suspected."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain, idle, client = world.domain(), ProcessId(101, 7), ProcessId(201, 7)
    async with running(world.incidents.run):
        for process, uid, server in ((idle, ATTACKER, SERVER_PIDS[0]), (client, USER, SERVER_PIDS[is_new_server])):
            domain.join(process, uid)
            world.incidents.arrived(process, domain)
            domain.servers = {server: ServerView(server, uid, "ACTIVE", (client.pid,)[: uid == USER], domain.name, domain.gpus)}
            world.pool.notify()
            await trio.sleep(60)
            world.forget_absent()
        await fault(world, domain, idle if has_ended else None)
    assert (world.last.culprit, world.last.confidence) == (client, Confidence.ALONE)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_who_was_placed_there_before_its_daemon_ended_excuses_no_client(tmp_path, autojump_clock, has_ended):
    """It was in no domain then, and so was not forgotten: killed at the time of a fault, it made that one of the class host."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain, idle, client = world.domain(), ProcessId(101, 7), ProcessId(201, 7)
    async with running(world.incidents.run):
        domain.join(idle, ATTACKER)
        world.incidents.arrived(idle, domain)
        domain.forget()
        await world.turn(domain, DomainState.DEAD, DomainState.STARTING, DomainState.READY)
        domain.join(client, USER)
        world.incidents.arrived(client, domain)
        world.lists(domain, client.pid)
        await trio.sleep(60)
        await fault(world, domain, idle if has_ended else None)
    assert (world.last.culprit, world.last.confidence) == (client, Confidence.ALONE)


async def test_a_client_that_ended_stays_a_suspect_while_another_user_waits_for_the_domain(tmp_path, autojump_clock):
    """As in EXCLUSIVE_PROCESS mode.  It was in no list then: only its neighbour and the client that waited were suspects."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain, culprit, neighbour, waiting = world.domain(), ProcessId(101, 7), ProcessId(102, 7), ProcessId(201, 7)

    def serve(*pids: int) -> None:
        domain.servers = {SERVER_PIDS[0]: ServerView(SERVER_PIDS[0], ATTACKER, "ACTIVE", pids, domain.name, domain.gpus)}
        world.pool.notify()

    async with running(world.incidents.run):
        for process, uid in ((culprit, ATTACKER), (neighbour, ATTACKER), (waiting, USER)):
            domain.join(process, uid)
            world.incidents.arrived(process, domain)
        serve(culprit.pid, neighbour.pid)
        await trio.sleep(60)
        with domain.handshake(waiting):
            serve(neighbour.pid)
            world.end(culprit)
            world.xid(43, domain.name)
            world.say_fault(domain)
            await trio.sleep(60)
    assert world.last.suspects == (culprit, neighbour, waiting)


@pytest.fixture
def new_server(request):
    """Start a process that is to be a server, when it is called; return its pid."""
    started = []

    def start() -> int:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[0].pid

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.mark.parametrize("is_convicted", [False, True], ids=["the new server", "the one before"])
async def test_one_that_new_servers_served_before_mpsd_listed_them_counts(tmp_path, autojump_clock, new_server, is_convicted):
    """With a server for all users: it got a channel and ended, and a child went on.  The next client there was convicted."""
    world = IncidentWorld(tmp_path, describe=of_users)
    domain = world.domain()
    async with running(world.incidents.run):
        [gone] = world.arrive(domain, 101)
        if is_convicted:
            world.incidents.served(gone, domain)
        await trio.sleep(60)
        pid = new_server()
        await trio.sleep(1)
        if not is_convicted:
            world.incidents.served(gone, domain)
        world.end(gone)
        domain.servers = {pid: ServerView(pid, 0, "ACTIVE", (), domain.name, domain.gpus)}
        world.pool.notify()
        await trio.sleep(60)
        [victim] = world.arrive(domain, 201)
        world.incidents.served(victim, domain)
        domain.servers = {pid: ServerView(pid, 0, "ACTIVE", (victim.pid,), domain.name, domain.gpus)}
        world.xid(31, domain.name)
        world.say_fault(domain)
        await trio.sleep(60)
    assert ("blame.convicted" in world.topics) is is_convicted
