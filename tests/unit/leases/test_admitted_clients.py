"""LeaseBook: clients from their arrival to their end."""

import pytest
import trio
from trio.testing import MockClock

from mpsd.errors import NoRoom, Refused
from mpsd.host.inspector_answers import Unreadable
from mpsd.leases.rules.settings import AdmissionSettings, Quota
from mpsd.model.lease import DomainPolicy, Identity, Refusal
from mpsd.model.process import Credentials
from tests.unit.leases.world import ALICE, BOB, GIB, GPU_A, GPU_B, ROOT, Arrival, World, by_pid, by_uid, ids, process, spec


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_without_a_lease_the_default_is_given_at_once_and_costs_nothing(world):
    """The plain drop-in: no look at the process, no waiting, nothing on disk."""
    statements = []
    world.store._db.set_trace_callback(statements.append)
    grant = await world.admit(5)
    assert (grant.lease_id, grant.sm_percent, grant.memory_bytes, grant.priority) == (None, 100.0, {}, 0)
    assert (statements, world.identified) == ([], 0)
    world.book.leave(process(5))
    assert statements == []
    assert world.topics() == ["client.admitted", "client.left"]


async def test_a_client_gets_what_its_lease_says(world):
    lease = world.book.create(
        ROOT, spec(60, gpus=("1",), memory_bytes={"1": 10 * GIB}, processes=4, priority=1, domain=DomainPolicy.OWN)
    )
    grant = await world.admit(5)
    assert (grant.lease_id, grant.gpus, grant.sm_percent, grant.priority) == (1, (GPU_B,), 15.0, 1)
    assert dict(grant.memory_bytes) == {GPU_B: 10 * GIB // 4}
    assert (grant.domain, grant.domain_key) == (DomainPolicy.OWN, str(lease.id))
    assert "lease 1" in grant.rule
    assert world.book.grants() == {process(5): grant}
    assert world.facts("client.admitted")["uid"] == ALICE


async def test_the_same_process_gets_the_same_answer(world):
    """Each of its connections asks; a later lease does not change its grant."""
    first = await world.admit(5)
    world.book.create(ROOT, spec(10))
    assert await world.admit(5) is first
    assert (await world.admit(6)).lease_id == 1


async def test_so_do_two_connections_that_wait_for_the_user_database(tmp_path):
    """It was admitted twice, and stayed under its first lease after its end: the end of that lease ended mpsd."""
    stranger = 64321  # unknown to the user database, which is asked each time
    world = World(tmp_path, AdmissionSettings(group_quotas={"nogroup": Quota(clients=5)}))
    old = world.book.create(stranger, spec(30, by_uid(stranger)))
    async with trio.open_nursery() as nursery:
        both = [Arrival(world, nursery, 5, stranger) for _ in range(2)]
        while not (given := [each.grant for each in both if each.grant]):
            await trio.lowlevel.checkpoint()
        assert [each.lease_id for each in given] == [old.id]  # the other one still waits
        world.book.create(stranger, spec(20, by_uid(stranger)))
    assert [each.grant for each in both] == given * 2
    world.book.leave(process(5))
    world.book.release(old.id)
    assert not world.book._clients._slots


@pytest.mark.parametrize("way", [Refusal.ERROR, Refusal.END])
async def test_without_a_lease_it_is_refused_as_configured(world, way):
    world.change(default="refuse", refuse_with=way)
    with pytest.raises(Refused) as refused:
        await world.admit(1)
    assert refused.value.way is way
    assert world.facts("client.refused")["way"] == way.value
    assert not world.book.grants()


async def test_a_released_leases_clients_keep_what_they_have_and_it_counts_until_they_end(world):
    world.book.create(ROOT, spec(60, memory_bytes={GPU_A: 60 * GIB}))
    grant = await world.admit(1)
    world.book.release(1)
    assert world.book.grant_of(process(1)) == grant
    with pytest.raises(NoRoom, match="60 % of 100 % taken by 0 leases and 1 clients"):
        world.book.create(ROOT, spec(50))
    with pytest.raises(NoRoom, match="MiB"):
        world.book.create(ROOT, spec(10, memory_bytes={GPU_A: 30 * GIB}))
    world.book.leave(process(1))
    world.book.create(ROOT, spec(100, memory_bytes={GPU_A: 80 * GIB}))


async def test_only_what_running_clients_hold_counts_on(world):
    world.book.create(ROOT, spec(60, processes=3))
    await world.admit(1)
    world.book.release(1)
    world.book.create(ROOT, spec(80))
    with pytest.raises(NoRoom):
        world.book.create(ROOT, spec(1))


async def test_an_expired_leases_clients_keep_theirs_too(world, autojump_clock: MockClock):
    world.book.create(ROOT, spec(60, ttl_seconds=5))
    await world.admit(1)
    async with world.running():
        await trio.sleep(6)
    assert not world.book.leases()
    with pytest.raises(NoRoom):
        world.book.create(ROOT, spec(50))


async def test_a_lease_by_pid_ends_with_its_process(world):
    """Also if the process was not a client."""
    for pid in (1, 2):
        world.book.create(ROOT, spec(50, by_pid(pid)))
    await world.admit(1)
    world.book.leave(process(1))
    assert ids(world.book.leases()) == [2]
    world.book.leave(process(2))
    assert not world.book.leases()
    assert world.facts("lease.released")["reason"] == "its process has ended"


async def test_the_end_of_a_process_that_nobody_reports_is_noticed(world, autojump_clock: MockClock):
    """One that a lease names and that never was a client; one that ended on its way into a domain."""
    world.book.create(ROOT, spec(50, by_pid(1)))
    world.book.create(ROOT, spec(50, by_uid(BOB)))
    await world.admit(2, BOB)
    async with world.running():
        world.dead |= {1, 2}
        await trio.sleep(41)
    assert ids(world.book.leases()) == [2]
    assert not world.book.grants()


async def test_a_process_that_cannot_be_seen_is_not_counted(world):
    """Its end would not be seen either: what it held would never be free again."""
    world.book.create(ROOT, spec(50))
    for _ in range(3):
        grant = await world.book.admit(None, Credentials(0, ALICE, ALICE), lambda reason: None)
        assert (grant.lease_id, grant.sm_percent, grant.memory_bytes, grant.priority) == (None, 100.0, {}, 0)
    assert not world.book.grants()


async def test_a_process_that_cannot_be_seen_is_refused_where_clients_without_a_lease_are(world, autojump_clock: MockClock):
    world.change(default="refuse", refuse_with=Refusal.END)
    with pytest.raises(Refused):
        await world.book.admit(None, Credentials(0, ALICE, ALICE), lambda reason: None)
    world.change(refuse_with=Refusal.WAIT)
    with trio.move_on_after(1000) as waited:
        await world.book.admit(None, Credentials(0, ALICE, ALICE), lambda reason: None)
    assert waited.cancelled_caught


async def test_who_a_client_is_can_be_asked_later(world):
    world.identities[1] = Identity(None, 0, container="job_7")
    await world.admit(1)
    assert (world.book.uid_of(process(1)), world.book.uid_of(process(2))) == (ALICE, None)
    assert world.identified == 0
    found = world.book.identity_of(process(1))
    assert found is not None
    assert (found.container, found.uid, found.process) == ("job_7", ALICE, process(1))
    assert world.book.identity_of(process(1)) is found
    assert world.book.identity_of(process(2)) is None


async def test_a_client_whose_cgroups_are_not_known_is_not_admitted_past_their_leases(world, monkeypatch):
    """Without a lease, no client is asked for its cgroups, and not to know them harms none."""

    def identify(process, credentials):
        raise Unreadable("its cgroups cannot be read")

    monkeypatch.setattr(world, "_identify", identify)
    world.restarted()
    await world.admit(1)
    assert world.book.identity_of(process(1)) is None
    world.book.create(ROOT, spec(10, by_uid(BOB)))
    with pytest.raises(Unreadable, match="cannot be read"):
        await world.admit(2)
    assert process(2) not in world.book.grants()
