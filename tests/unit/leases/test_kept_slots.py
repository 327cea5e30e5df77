"""LeaseBook: one user's clients leave client slots for those of others."""

from contextlib import suppress

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from mpsd.errors import Refused, TooMany
from mpsd.fairness.uid_ranges import parse
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.wait_queue import NO_PLACE
from mpsd.model.lease import LeaseState, Refusal
from mpsd.model.process import Credentials
from tests.unit.leases.world import ALICE, BOB, ROOT, Arrival, World, by_token, by_uid, process, spec

SLOTS, FREELY = 64, 56
SUBORDINATE = 100_000
KEPT = "clients: the last 8 of 64 are kept for operators and for users with fewer than 4 clients"
FOR_OPERATORS = "clients: the last 2 of 64 are kept for operators"


@pytest.fixture
def world(tmp_path):
    settings = AdmissionSettings(max_clients=SLOTS, max_queue=32, user_queue=16)
    return World(tmp_path, settings, parse(f"eve:{SUBORDINATE}:65536\n"))


async def fill(world: World, uids: list[int]) -> None:
    """One process for each, which does not end by itself."""
    for pid, uid in enumerate(uids, 1):
        await world.admit(pid, uid)


@pytest.mark.parametrize(
    "uids",
    [
        pytest.param([ALICE] * 100, id="one uid"),
        pytest.param([SUBORDINATE + number for number in range(100)], id="the uids of one range of /etc/subuid"),
    ],
)
async def test_a_user_whose_clients_do_not_end_keeps_no_other_user_out(world, uids: list[int], autojump_clock: MockClock):
    """One took all slots, and others waited for ever, root too; or all places of the queue."""
    await fill(world, uids[:FREELY])
    async with world.running() as nursery:
        greedy = [Arrival(world, nursery, 100 + number, uid) for number, uid in enumerate(uids[FREELY:])]
        await wait_all_tasks_blocked()
        assert not any(each.grant for each in greedy)
        assert {reason for each in greedy for reason in each.told} == {KEPT, NO_PLACE}
        assert world.book.queue()[0].reason == KEPT
        await world.admit(201, BOB)
        await world.admit(202, ROOT)
        for pid in (1, 2, 3):
            world.book.leave(process(pid))
        await wait_all_tasks_blocked()
        assert sum(each.grant is not None for each in greedy) == 1, "two of the three freed slots are kept again"


async def test_the_last_slots_are_for_operators(world, autojump_clock: MockClock):
    await fill(world, [ALICE] * FREELY)
    async with world.running() as nursery:
        others = [Arrival(world, nursery, 100 + uid, uid) for uid in range(2000, 2007)]
        await wait_all_tasks_blocked()
        assert [each.told for each in others if not each.grant] == [[FOR_OPERATORS]]
        await world.admit(1001, ROOT)
        await world.admit(1002, ROOT)
        last = Arrival(world, nursery, 1003, ROOT)
        await wait_all_tasks_blocked()
        assert last.told == ["clients: 1 asked, 64 of 64 taken"]


async def test_slots_that_become_free_together_are_counted_one_by_one(world, autojump_clock: MockClock):
    """A user with few clients and many that wait got the kept ones as well; who waits behind gets what is left."""
    await fill(world, [BOB] * FREELY + [2000, 2001, 2002, 2003, 2004, 2005] + [ROOT] * 2)
    async with world.running() as nursery:
        many = [Arrival(world, nursery, 100 + number, ALICE) for number in range(12)]
        await wait_all_tasks_blocked()
        behind = Arrival(world, nursery, 200, 3000)
        await wait_all_tasks_blocked()
        for pid in range(FREELY - 1, FREELY + 7):
            world.book._clients.remove(process(pid), is_stored=False)
        world.book._admissions.catch_up()
        assert sum(process(each.pid) in world.book.grants() for each in many) == 4
        assert process(behind.pid) in world.book.grants()


async def test_a_few_users_who_wait_leave_places_of_the_queue_for_others(world, autojump_clock: MockClock):
    """Eight users' waiting leases filled it: then no other lease could wait, not root's either, and no client was let in."""
    world.change(max_queue=64, user_queue=8)
    only = world.book.create(ROOT, spec(100, by_uid(BOB)))
    await world.admit(301, BOB)
    for uid in range(2000, 2008):
        for _ in range(8):
            with suppress(TooMany):
                world.book.create(uid, spec(1, by_token(), wait_seconds=1000))
    assert world.book.create(ALICE, spec(1, by_token(), wait_seconds=1000)).state is LeaseState.QUEUED
    async with world.running() as nursery:
        second = Arrival(world, nursery, 302, BOB)
        await wait_all_tasks_blocked()
        assert second.told == [f"lease {only.id} has 1 of its 1 processes"]
        assert world.book.create(ROOT, spec(1, by_token(), wait_seconds=1000)).state is LeaseState.QUEUED
        world.book.leave(process(301))
        await wait_all_tasks_blocked()
        assert second.grant is not None, "it was outside the full queue, and not considered"


async def test_with_few_descriptors_a_user_with_many_is_refused(world):
    """One that waits takes the descriptors that the kept slots are for."""
    world.change(is_short_of_files=True)
    await fill(world, [ALICE] * FREELY)
    with pytest.raises(Refused, match=f"raise LimitNOFILE=; {KEPT}") as refused:
        await world.admit(100)
    assert refused.value.way is Refusal.ERROR
    await world.admit(101, BOB)


async def test_clients_of_an_earlier_mpsd_count_until_they_end(world):
    book = world.book
    for pid in range(1, FREELY + 1):
        book.adopt(process(pid), Credentials(pid, ALICE, ALICE))
    assert book._clients.hindrance_of(ALICE) == KEPT
    for pid in range(1, FREELY + 1):
        book.leave(process(pid))
    assert not book._clients._slots
