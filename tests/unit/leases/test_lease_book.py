"""LeaseBook: leases from their creation to their end, and how many there may be."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from mpsd.errors import BadRequest, NoRoom, NoSuchDevice, NoSuchLease, NotAllowed, TooMany
from mpsd.fairness.uid_ranges import parse
from mpsd.leases.rules.settings import AdmissionSettings, Quota
from mpsd.model.lease import DomainPolicy, Selector, SelectorKind
from tests.unit.leases.world import ALICE, BOB, GIB, GPU_A, GPU_B, ROOT, TOKEN, World, by_token, by_uid, ids, spec


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# -- leases ----------------------------------------------------------------------------------------------------------


def test_one_that_does_not_fit_is_refused_and_leaves_nothing_behind(world):
    world.book.create(ROOT, spec(60))
    with pytest.raises(NoRoom, match=r"^GPU-aaaaaaaa, SMs: 50 % asked, 60 % of 100 % taken by 1 lease$"):
        world.book.create(ROOT, spec(50))
    assert ids(world.book.leases()) == [1]
    assert world.book.create(ROOT, spec(40)).id == 2


def test_gpus_are_counted_each_for_itself(world):
    world.book.create(ROOT, spec(100, gpus=("0",)))
    assert world.book.create(ROOT, spec(100, gpus=(GPU_B,))).spec.gpus == (GPU_B,)
    with pytest.raises(NoRoom, match="SMs: 1 % asked"):
        world.book.create(ROOT, spec(1))


def test_memory_is_counted_too(world):
    world.book.create(ROOT, spec(10, memory_bytes={"0": 60 * GIB}))
    with pytest.raises(NoRoom, match=f"{GPU_A}, memory: 30720 MiB asked, 61440 MiB of 81920 MiB taken"):
        world.book.create(ROOT, spec(10, memory_bytes={GPU_A: 30 * GIB}))
    world.book.create(ROOT, spec(10, memory_bytes={GPU_B: 30 * GIB}))


def test_oversubscription_widens_the_budget(world):
    world.change(sm_oversubscription=1.5, memory_oversubscription=2.0)
    world.book.create(ROOT, spec(100, memory_bytes={GPU_A: 80 * GIB}))
    world.book.create(ROOT, spec(50, memory_bytes={GPU_A: 80 * GIB}))
    with pytest.raises(NoRoom):
        world.book.create(ROOT, spec(1))


def test_what_is_more_than_there_is_cannot_wait_for_it(world):
    with pytest.raises(NoRoom, match="more than there is"):
        world.book.create(ROOT, spec(10, memory_bytes={GPU_A: 81 * GIB}, wait_seconds=60))
    assert not world.book.queue()


def test_thirds_and_sevenths_fill_a_gpu(world):
    for part in (3, 7):
        leases = [world.book.create(ROOT, spec(100 / part)) for _ in range(part)]
        for lease in leases:
            world.book.release(lease.id)


def test_a_released_lease_is_gone_and_its_share_is_free(world):
    lease = world.book.create(ROOT, spec(100))
    assert world.book.release(lease.id) == lease
    with pytest.raises(NoSuchLease):
        world.book.find(lease.id)
    with pytest.raises(NoSuchLease):
        world.book.release(lease.id)
    assert world.book.create(ROOT, spec(100)).id == 2
    assert world.topics() == ["lease.created", "lease.released", "lease.created"]


async def test_a_lease_expires_unless_it_is_renewed(world, autojump_clock: MockClock):
    lease = world.book.create(ROOT, spec(100, ttl_seconds=10))
    assert lease.expires_at == world.now + 10
    async with world.running():
        await trio.sleep(6)
        assert world.book.renew(lease.id, 10).expires_at == world.now + 16
        await trio.sleep(9.9)
        assert ids(world.book.leases()) == [1]
        await trio.sleep(0.2)
        assert not world.book.leases()
    assert world.topics() == ["lease.created", "lease.renewed", "lease.expired"]


async def test_a_renewal_can_shorten_lengthen_and_lift_the_end(world, autojump_clock: MockClock):
    lease = world.book.create(ROOT, spec(1, ttl_seconds=10))
    async with world.running():
        assert world.book.renew(lease.id, None).expires_at is None
        await trio.sleep(1000)
        world.book.renew(lease.id, 1)
        await trio.sleep(1.1)
        assert not world.book.leases()


async def test_ten_thousand_renewals_are_not_kept(world, autojump_clock: MockClock):
    lease = world.book.create(ROOT, spec(1, ttl_seconds=10))
    for _ in range(1000):
        world.book.renew(lease.id, 1000)
    assert len(world.book._register._ends) < 100


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        pytest.param({"sm": 0}, BadRequest, id="no share"),
        pytest.param({"sm": 100.1}, BadRequest, id="more than a GPU"),
        pytest.param({"sm": float("nan")}, BadRequest, id="not a number"),
        pytest.param({"memory_bytes": {"0": GIB, GPU_A: 2 * GIB}}, BadRequest, id="two limits for one GPU"),
        pytest.param({"processes": 0}, BadRequest, id="no process"),
        pytest.param({"processes": 1025}, BadRequest, id="too many processes"),
        pytest.param({"priority": 2}, BadRequest, id="priority"),
        pytest.param({"ttl_seconds": 0}, BadRequest, id="ended already"),
        pytest.param({"wait_seconds": -1}, BadRequest, id="waited already"),
        pytest.param({"wait_seconds": float("inf")}, BadRequest, id="for ever"),
        pytest.param({"gpus": ("2",)}, NoSuchDevice, id="no such GPU"),
        pytest.param({"gpus": tuple(map(str, range(65)))}, BadRequest, id="more GPUs than are looked up"),
        pytest.param({"memory_bytes": {"7": GIB}}, NoSuchDevice, id="memory of no GPU"),
        pytest.param({"gpus": ("0",), "memory_bytes": {"1": GIB}}, BadRequest, id="memory of another GPU"),
        pytest.param({"memory_bytes": {"0": GIB}, "processes": 1024 + 1}, BadRequest, id="a part"),
        pytest.param({"memory_bytes": {"0": 1 << 20}, "processes": 2}, BadRequest, id="a part below the vendor's unit"),
        pytest.param({"domain": DomainPolicy.GROUP}, BadRequest, id="a group without a name"),
        pytest.param({"group": "a b"}, BadRequest, id="a group's name"),
        pytest.param({"group": "g" * 65}, BadRequest, id="a long group"),
        pytest.param({"level": "urgent"}, BadRequest, id="level"),
        pytest.param({"selector": by_token("short")}, BadRequest, id="a short token"),
        pytest.param({"selector": by_token("t" * 129)}, BadRequest, id="a long token"),
        pytest.param({"selector": by_token("t" * 16 + "\n")}, BadRequest, id="a token of two lines"),
        pytest.param({"selector": Selector(SelectorKind.CGROUP, "/")}, BadRequest, id="every cgroup"),
        pytest.param({"selector": Selector(SelectorKind.CGROUP, "/a" * 3000)}, BadRequest, id="a long cgroup"),
        pytest.param({"selector": Selector(SelectorKind.CGROUP, "a\0")}, BadRequest, id="a cgroup with a zero"),
        pytest.param({"selector": Selector(SelectorKind.UID, "root")}, BadRequest, id="a user's name"),
        pytest.param({"selector": Selector(SelectorKind.UID, "4294967295")}, BadRequest, id="nobody's uid"),
        pytest.param({"selector": Selector(SelectorKind.PID, "-1")}, BadRequest, id="no pid"),
        pytest.param({"selector": Selector(SelectorKind.PID, "4000000", 7)}, BadRequest, id="a process that was another"),
    ],
)
def test_a_lease_that_makes_no_sense_is_refused(world, wrong, error):
    with pytest.raises(error) as refused:
        world.book.create(ROOT, spec(**wrong))
    assert not world.book.leases()
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("name", ["", "x" * 129, "two\nlines", "\x1b[31m", "\ud800"])
def test_a_name_is_short_and_printable(world, name):
    with pytest.raises(BadRequest, match="name"):
        world.book.create(ROOT, replace(spec(), name=name))


def test_a_refused_token_is_not_said_back(world):
    with pytest.raises(BadRequest) as refused:
        world.book.create(ROOT, spec(selector=by_token("secret")))
    assert "secret" not in str(refused.value)


def test_a_token_is_in_no_event(world):
    world.book.create(ROOT, spec(selector=by_token()))
    world.book.renew(1, 5)
    world.book.release(1)
    assert TOKEN not in repr(world.events)


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_there_are_only_so_many_leases(world):
    world.change(max_leases=2)
    for _ in range(2):
        world.book.create(ROOT, spec(1))
    with pytest.raises(TooMany, match="max_leases"):
        world.book.create(ROOT, spec(1))


def test_a_user_has_only_so_many(world):
    world.change(user_leases=2)
    for _ in range(2):
        world.book.create(ALICE, spec(1))
    with pytest.raises(NoRoom, match="quota of user 1000, leases: 1 asked, 2 of 2 taken"):
        world.book.create(ALICE, spec(1))
    world.book.create(BOB, spec(1, by_uid(BOB)))
    world.book.create(ROOT, spec(1))


def test_the_uids_of_one_range_have_one_quota(tmp_path):
    """Eve acts as any of 65,536 users, and took all leases."""
    world = World(tmp_path, AdmissionSettings(user_leases=2, user_memory_bytes=10 * GIB), parse("eve:100000:65536\n"))
    world.book.create(100_001, spec(1, by_uid(100_001), memory_bytes={"0": 6 * GIB}))
    with pytest.raises(NoRoom, match="quota of user 100000, GPU-aaaaaaaa, memory: 6144 MiB asked, 6144 MiB of"):
        world.book.create(100_002, spec(1, by_uid(100_002), memory_bytes={"0": 6 * GIB}))
    world.book.create(100_002, spec(1, by_uid(100_002)))
    with pytest.raises(NoRoom, match="quota of user 100000, leases: 1 asked, 2 of 2 taken"):
        world.book.create(100_003, spec(1, by_uid(100_003)))
    world.book.create(BOB, spec(1, by_uid(BOB)))


def test_the_last_leases_are_for_users_with_few_and_for_operators(world):
    """A user without a quota took all of them, from root too."""
    world.change(user_leases=None, max_leases=64)
    for _ in range(56):
        world.book.create(ALICE, spec(0.1))
    with pytest.raises(TooMany, match="leases: the last 8 of 64 are kept for operators and for users with fewer than 4 leases"):
        world.book.create(ALICE, spec(0.1))
    for uid in (BOB, 1002):
        for _ in range(3):
            world.book.create(uid, spec(0.1, by_uid(uid)))
    with pytest.raises(TooMany, match="leases: the last 2 of 64 are kept for operators"):
        world.book.create(1003, spec(0.1, by_uid(1003)))
    for _ in range(2):
        world.book.create(ROOT, spec(0.1))
    with pytest.raises(TooMany, match="64 leases exist"):
        world.book.create(ROOT, spec(0.1))


def test_a_users_quota_of_shares_and_memory_is_for_each_gpu(world):
    world.change(user_sm_percent=50.0, user_memory_bytes=10 * GIB)
    world.book.create(ALICE, spec(50, gpus=("0",), memory_bytes={"0": 10 * GIB}))
    world.book.create(ALICE, spec(50, gpus=("1",)))
    with pytest.raises(NoRoom, match="user 1000, GPU-aaaaaaaa"):
        world.book.create(ALICE, spec(1, gpus=("0",)))
    world.book.create(BOB, spec(50, by_uid(BOB), gpus=("0",)))


def test_a_group_of_unix_has_its_own_quota_and_total(tmp_path):
    groups = {ALICE: ("staff",), BOB: ("staff",)}
    settings = AdmissionSettings(
        user_sm_percent=10.0, group_quotas={"staff": Quota(sm_percent=60.0)}, group_totals={"staff": Quota(sm_percent=80.0)}
    )
    world = World(tmp_path, settings)
    world.book._quotas._groups.of = lambda uid, names: groups.get(uid, ())
    world.book.create(ALICE, spec(60, gpus=("0",)))
    with pytest.raises(NoRoom, match="quota of group staff"):
        world.book.create(BOB, spec(30, by_uid(BOB), gpus=("0",)))
    world.book.create(BOB, spec(20, by_uid(BOB), gpus=("0",)))
    with pytest.raises(NoRoom, match="quota of user 1002"):
        world.book.create(1002, spec(11, by_uid(1002), gpus=("1",)))


def test_a_user_makes_no_lease_for_anothers_processes(world):
    with pytest.raises(NotAllowed):
        world.book.create(ALICE, spec(selector=by_uid(BOB)))
    assert world.book.create(ALICE, spec(), for_all_users=False).for_all_users is False
    assert world.book.create(ALICE, spec(selector=by_uid(BOB)), for_all_users=True).for_all_users is True


# -- the same request once more ------------------------------------------------------------------------------------------


def test_a_request_with_a_key_makes_one_lease_however_often_it_is_asked(world):
    """A caller that got no answer, since mpsd ended, asks again."""
    asked = spec(20, request_key="job-4711", ttl_seconds=60.0)
    first = world.book.create(ALICE, asked)
    assert world.book.create(ALICE, asked) == first
    world.book.renew(first.id, 600)
    assert world.restarted().create(ALICE, asked).id == first.id
    assert len(world.book.leases()) == 1
    world.book.release(first.id)
    assert world.book.create(ALICE, asked).id != first.id


def test_a_key_that_is_used_for_something_else_is_refused(world):
    lease = world.book.create(ALICE, spec(20, request_key="job"))
    with pytest.raises(BadRequest, match=rf"found 'job'; lease {lease.id} was made with it, and has other settings"):
        world.book.create(ALICE, spec(21, request_key="job"))
    assert ids(world.book.leases()) == [lease.id]


def test_a_key_is_its_owners_own(world):
    mine = world.book.create(ALICE, spec(20, request_key="job"))
    assert world.book.create(BOB, spec(20, by_uid(BOB), request_key="job")).id != mine.id
    assert world.book.create(ALICE, spec(20)).id != world.book.create(ALICE, spec(20)).id  # without one, each makes its own


def test_a_key_of_an_operator_is_none_of_a_container_with_its_uid(world):
    """Such a process took the key before the operator, who then got its lease, or a refusal."""
    theirs = world.book.create(ROOT, spec(20, by_token(), request_key="job"), for_all_users=False)
    assert world.book.create(ROOT, spec(20, by_token(), request_key="job"), for_all_users=True).id != theirs.id
    assert world.book.create(ROOT, spec(20, by_token(), request_key="job"), for_all_users=False) == theirs
