"""The incidents: what makes a domain suspected, what it publishes and stores, and the cases against clients."""

import time

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import NoSuchFault
from mpsd.faults.rules.incident_record import MOST_DEEDS
from mpsd.model.blame import BlameKind
from mpsd.model.domain import DomainState
from mpsd.model.fault import TEXT_CHARACTERS, Confidence, FaultClass, FirstError, Observation, Party, Source
from mpsd.model.process import ProcessId
from tests.unit.faults.incident_world import BOOTED_NS, SETTINGS, IncidentWorld, key, running


@pytest.fixture
def world(tmp_path):
    return IncidentWorld(tmp_path)


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
async def test_what_makes_a_domain_suspected(world, autojump_clock, facts, is_suspected):
    domain = world.domain()
    world.arrive(domain, 101)
    world.see(**facts)
    assert domain.is_ill is is_suspected


async def test_a_suspected_domain_is_let_go_after_two_seconds_and_whoever_waits_is_woken(world, autojump_clock):
    """Each in its own time, however often another is suspected."""
    first, second = world.domain(), world.domain("d2")
    woken = {}

    async def wait_for(domain):
        while domain.is_ill:
            await world.pool.changed()
        woken[domain.name] = round(trio.current_time(), 3)

    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await trio.testing.wait_all_tasks_blocked()
        world.xid(13, "default")
        for _ in range(2):
            await trio.sleep(0.7)
            world.xid(13, "d2")
        nursery.start_soon(wait_for, first)
        nursery.start_soon(wait_for, second)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert woken == {"default": pytest.approx(2.0, abs=0.02), "d2": pytest.approx(3.4, abs=0.02)}


async def test_who_must_not_wait_is_told_before_the_rest_is_done_and_in_order(world, autojump_clock):
    """As a standby that takes over: an incident is stored, which takes as long as all the rest."""
    world.domain()
    world.incidents.observed.subscribe(lambda seen: seen.xid == 43 and world.outbox.answer_first())
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await trio.testing.wait_all_tasks_blocked()
        world.xid(43, "default")
        world.xid(13, "default")
        assert world.told == []
        await trio.sleep(0.002)
        assert [incident.xids for incident in world.told] == [(43,), (43, 13)]
        world.xid(31, "default")
        assert world.last.xids == (43, 13, 31)
        nursery.cancel_scope.cancel()


async def test_a_domain_that_is_known_to_fault_is_not_suspected_as_well(world, autojump_clock):
    domain = world.domain()
    domain.state = DomainState.FAULT
    world.xid(13, "default")
    assert domain.suspect_until < 0


# -- publishing and storing -----------------------------------------------------------------------------------------------


async def test_a_proven_fault_is_told_once_from_its_beginning_to_its_end(world, autojump_clock):
    """A settled incident that a late dump changes is not settled again."""
    domain = world.domain()
    a, b = world.arrive(domain, 101, 102)
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        world.prove(a, address=0x1000)
        world.say_fault(domain)
        await world.turn(domain, DomainState.FAULT, DomainState.RECYCLING, DomainState.READY)
        await trio.sleep(5)
        assert world.last.is_settled
        count = len(world.told)
        world.see(Source.CORE_DUMP, process=b, clears=True)
        nursery.cancel_scope.cancel()
    assert len(world.told) == count + 1
    assert world.topics == ["fault.opened", "fault.culprit", "blame.convicted", "fault.settled"]
    assert [facts["number"] for topic, facts in world.events if topic.startswith("fault.")] == [1, 1, 1]
    assert [each.revision for each in world.told] == list(range(1, count + 2))


async def test_without_fresh_servers_it_is_settled_after_thirty_seconds_of_silence(world, autojump_clock):
    domain = world.domain()
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        world.say_fault(domain)
        await trio.sleep(29)
        assert not world.last.is_settled
        await trio.sleep(2)
        assert world.last.is_settled
        nursery.cancel_scope.cancel()


async def test_a_domain_that_has_gone_is_waited_for_no_longer(world, autojump_clock):
    domain = world.domain("d2")
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await trio.testing.wait_all_tasks_blocked()
        world.say_fault(domain)
        del world.pool.domains["d2"]
        world.pool.notify()
        await trio.sleep(3.1)
        assert world.last.is_settled
        nursery.cancel_scope.cancel()


async def test_what_was_told_is_kept(world, autojump_clock):
    """The first mpsd was killed: what it had not finished is settled, what it decided stays, and numbers go on."""
    domain = world.domain()
    (a,) = world.arrive(domain, 101)
    world.prove(a)
    world.incidents.note(world.last, "something")
    again = world.again()
    (left,) = again.incidents.incidents(0)
    assert left == replace(world.last, revision=world.last.revision + 1, is_settled=True)
    assert left.deeds[0].text == "something"
    assert again.incidents.incident(1) == left
    assert again.incidents.key_of(a) == f"quarantine:{key(a)}"
    again.say_fault(again.domain())
    assert again.last.number == 2


async def test_older_incidents_are_asked_of_the_store(world, autojump_clock):
    for number in range(300):
        world.say_fault(world.domain(f"d{number}"))
    assert len(world.incidents._history._recent) == 256
    assert world.incidents.incident(1).domain == "d0"
    assert [each.number for each in world.incidents.incidents_before(3)] == [2, 1]
    with pytest.raises(NoSuchFault):
        world.incidents.incident(301)


async def test_what_a_full_disk_keeps_from_being_written_is_listed_all_the_same(world, autojump_clock):
    """Until mpsd ends, in its place, in its newest state, once."""
    numbers = []
    for disk_is_full in (0, 1, 0):
        world.store._db.execute(f"PRAGMA query_only={disk_is_full}")
        world.prove(*world.arrive(world.domain(f"d{len(numbers)}"), 101 + len(numbers)))
        numbers.append(world.last.number)
    world.store._db.execute("PRAGMA query_only=1")
    world.incidents.note(world.told[0], "that much was done")
    first, second, third = numbers
    assert [each.number for each in world.incidents.incidents(0)] == numbers
    assert [each.number for each in world.incidents.incidents(first)] == [second, third]
    assert [each.number for each in world.incidents.incidents_before(None)] == [third, second, first]
    assert [each.number for each in world.incidents.incidents_before(second)] == [first]
    assert next(iter(world.incidents.incidents(0))).deeds[-1].text == "that much was done"
    world.store._db.execute("PRAGMA query_only=0")
    world.incidents.note(world.incidents.incident(second), "there is world again")
    shown = [each.number for each in world.incidents.incidents(0)]
    assert [each.number for each in world.store.incidents()] == numbers == shown


async def test_an_incident_that_lasts_is_opened_once_however_many_come_and_go_meanwhile(world, autojump_clock):
    domain = world.domain()
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        world.say_fault(domain)
        for number in range(300):
            world.say_fault(world.domain("d2"))
            await trio.testing.wait_all_tasks_blocked()
            del world.pool.domains["d2"]
            world.pool.notify()
            await trio.sleep(4)
            world.xid(43, "default", text=str(number))
        await trio.sleep(40)
        nursery.cancel_scope.cancel()
    assert (world.last.number, world.last.is_settled) == (1, True)
    assert [facts["number"] for topic, facts in world.events if topic == "fault.opened"] == list(range(1, 302))


async def test_a_deed_of_an_incident_that_is_forgotten_changes_nothing(world, autojump_clock):
    world.say_fault(world.domain())
    incident, count = world.last, len(world.told)
    world.incidents.note(replace(incident, number=77), "too late")
    assert len(world.told) == count


async def test_what_followed_from_a_lost_gpu_is_told_with_its_incident_however_late(world, autojump_clock):
    """Where a service has moved to, and what was lost: the move may come long after the incident was settled."""
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        world.xid(79, gpu="GPU-b")
        world.say_fault(world.domain(gpus=("GPU-b",)))  # the incident of the domain has the GPU's Xid as an excuse
        assert world.incidents.incident(2).fault_class is FaultClass.DEVICE
        for number, text in enumerate(("at once", "an hour later"), 1):
            world.incidents.note_of_gpu("GPU-b", text)
            found = world.incidents.incident(1)
            assert [each.text for each in found.deeds] == ["at once", "an hour later"][:number]
            assert next(iter(world.store.incidents())) == found, "it is stored"
            await trio.sleep(3600)
        assert not world.incidents.incident(2).deeds
        count = len(world.told)
        world.incidents.note_of_gpu("GPU-c", "of a GPU without an incident")
        assert len(world.told) == count
        for _ in range(100):
            world.incidents.note_of_gpu("GPU-b", "one of many")
        assert [each.text for each in world.incidents.incident(1).deeds[:3]] == ["at once", "an hour later", "one of many"]
        assert len(world.told) == count + MOST_DEEDS - 2
        nursery.cancel_scope.cancel()


async def test_a_client_says_so_itself(world, autojump_clock):
    """It supports other evidence, and proves nothing alone."""
    domain = world.domain()
    (a,) = world.arrive(domain, 101)
    world.incidents.report(a, FirstError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", kernel="k", text="x" * 1000))
    assert world.told == []
    world.say_fault(domain)
    (said,) = (each for each in world.last.evidence if each.source is Source.REPORT)
    assert (said.domain, said.process, said.kernel, len(said.text)) == ("default", a, "k", TEXT_CHARACTERS)
    assert said.text.startswith("CUDA_ERROR_ILLEGAL_ADDRESS xxx")


@pytest.mark.parametrize("code", [700, 710, 714, 715, 716, 717, 718, 719])
async def test_an_error_that_an_sm_exception_gives_is_a_failure(world, autojump_clock, code):
    """A trap has no program counter, and so has an assertion (710): who reports its error is the likely culprit."""
    domain = world.domain()
    (a,) = world.arrive(domain, 101)
    world.incidents.report(a, FirstError(code, ""))
    world.say_fault(domain)
    (said,) = (each for each in world.last.evidence if each.source is Source.REPORT)
    assert said.is_failure


async def test_arrivals_and_ends_of_connections_are_passed_on(world, autojump_clock):
    seen = []
    world.incidents.client_arrived.subscribe(lambda process, domain, *how: seen.append((process.pid, domain.name, *how)))
    world.incidents.client_hung_up.subscribe(lambda process: seen.append(process.pid))
    domain = world.domain()
    world.arrive(domain, 101, 101)
    world.incidents.arrived(ProcessId(101, 7), domain, is_again=True)
    world.incidents.hung_up(ProcessId(101, 7))
    assert seen == [(101, "default", True, False), (101, "default", False, False), (101, "default", False, True), 101]


# -- blame ---------------------------------------------------------------------------------------------------------------


async def test_suspects_are_placed_apart_and_who_is_convicted_waits(world, autojump_clock):
    domain = world.domain()
    a, b, c = world.arrive(domain, 101, 102, 103)
    world.say_fault(domain)
    assert world.topics == ["fault.opened", "blame.suspected"]
    assert len({world.incidents.key_of(each) for each in (a, b, c)}) == 2
    world.prove(b)
    assert world.topics[2:] == ["fault.culprit", "blame.cleared", "blame.convicted"]
    assert [world.incidents.key_of(each) for each in (a, b, c)] == ["", f"quarantine:{key(b)}", ""]
    assert world.incidents.pause_of(b) == 0.0


async def test_other_settings_keep_convictions(world, autojump_clock):
    domain = world.domain()
    (a,) = world.arrive(domain, 101)
    world.prove(a)
    world.incidents.configure(replace(SETTINGS, quarantine=False, crash_faults=1))
    assert world.incidents.settings.crash_faults == 1
    assert world.incidents.key_of(a) == ""
    assert world.incidents.pause_of(a) > 0.5
    world.incidents.configure(SETTINGS)
    assert world.incidents.key_of(a) == f"quarantine:{key(a)}"
    assert world.again().incidents.key_of(a) == f"quarantine:{key(a)}"


async def test_a_pardon_is_told_and_kept(world, autojump_clock):
    domain = world.domain()
    (a,) = world.arrive(domain, 101)
    world.prove(a)
    assert [(each.key, each.kind, each.case) for each in world.incidents.standings()] == [(key(a), BlameKind.CONVICTED, 1)]
    assert world.incidents.pardon(key(a)).kind is BlameKind.CONVICTED
    assert world.events[-1] == ("blame.released", {"key": key(a), "why": "pardoned"})
    assert (world.incidents.key_of(a), list(world.incidents.standings())) == ("", [])
    assert list(world.again().incidents.standings()) == []
    with pytest.raises(NoSuchFault, match=r"p101"):
        world.incidents.pardon(key(a))


async def test_a_pardon_gives_a_drained_gpu_back_and_wakes_who_waits_for_it(world, autojump_clock):
    world.pool.drain_gpu("GPU-a", "Xid 79")
    assert [(each.key, each.kind) for each in world.incidents.standings()] == [("GPU-a", BlameKind.DRAINED)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.pool.changed)
        await trio.testing.wait_all_tasks_blocked()
        world.incidents.pardon("GPU-a")
    assert (world.pool.drained, world.events) == ({}, [("gpu.restored", {"gpu": "GPU-a"})])


async def test_suspicion_ends_in_time(world, autojump_clock, monkeypatch):
    """Days of the calendar are not of the test's clock."""
    domain = world.domain()
    a, _ = world.arrive(domain, 101, 102)
    world.say_fault(domain)
    assert world.incidents.key_of(a)
    later = time.time() + 1801
    monkeypatch.setattr("mpsd.faults.incidents.time.time", lambda: later)
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert world.topics[-1] == "blame.cleared"
    assert world.again().incidents.key_of(a) == ""


@pytest.mark.parametrize(
    ("party_of", "is_proven"),
    [
        pytest.param(lambda process: Party(process, 0, "p", "c1"), True, id="of one user and container"),
        pytest.param(lambda process: Party(process, process.pid, "p"), False, id="of two users"),
        pytest.param(lambda process: Party(process, 0, "p", f"c{process.pid}"), False, id="of two containers, one uid"),
    ],
)
async def test_a_sentinel_convicts_only_among_clients_of_one_owner(tmp_path, autojump_clock, party_of, is_proven):
    """A client that unmaps the address at which it executes could have another user's killed, which has it mapped too."""
    world = IncidentWorld(tmp_path, describe=party_of)
    domain = world.domain()
    one, _ = world.arrive(domain, 101, 102)
    observed = []
    world.incidents.observed.subscribe(observed.append)
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        exception = {"fault_class": FaultClass.SM, "is_contained": True}
        world.see(Source.SENTINEL, domain.name, **exception)
        world.see(Source.SENTINEL, domain.name, process=one, is_proof=True, **exception)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert world.last.culprit == (one if is_proven else None)
    assert set(world.last.suspects) == (set() if is_proven else {ProcessId(101, 7), ProcessId(102, 7)})
    assert observed[-1].is_proof is is_proven


async def test_the_next_mpsd_judges_a_contained_exception_that_was_not_judged(tmp_path, autojump_clock):
    """The sentinel repeats its reports: they belong to the stored fault, and name its culprit."""
    for is_known in (False, True):
        world = IncidentWorld(tmp_path)
        domain = world.domain()
        one, _ = world.arrive(domain, 101, 102)
        exception = {"fault_class": FaultClass.SM, "is_contained": True}
        assert not world.incidents.knows(domain.name, BOOTED_NS)
        async with trio.open_nursery() as nursery:
            running(world, nursery)
            world.incidents.see(Observation(Source.SENTINEL, BOOTED_NS, domain=domain.name, **exception))
            await trio.testing.wait_all_tasks_blocked()
            if is_known:
                world.see(Source.SENTINEL, domain.name, process=one, is_proof=True, **exception)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        world.store.close()
    assert (world.last.number, world.last.culprit, world.last.confidence) == (1, one, Confidence.PROVEN)
    again = IncidentWorld(tmp_path)
    assert again.incidents.knows(domain.name, BOOTED_NS)
    again.store.close()


async def test_who_is_there_when_a_sentinel_dies_is_not_accused(tmp_path, autojump_clock):
    """Long after the exception: then the server ends its clients, and reports a fault."""
    world = IncidentWorld(tmp_path)
    domain = world.domain()
    world.arrive(domain, 101)
    async with trio.open_nursery() as nursery:
        running(world, nursery)
        await world.turn(domain, DomainState.CONTAINED, DomainState.FAULT)
        world.say_fault(domain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (world.last.culprit, world.last.confidence) == (None, Confidence.UNKNOWN)
