"""A book that counts the SMs that clients are given, and leases that name memory alone."""

import pytest
from msgspec.structs import replace

from mpsd.domains.rules.vendor_limits import of_grant
from mpsd.errors import NoRoom
from mpsd.leases.rules.admission import renumbering
from mpsd.model.sm_steps import given
from tests.unit.leases.world import ALICE, BOB, DEVICES, GIB, GPU_A, GPU_B, ROOT, World, by_uid, spec

H200S = tuple(replace(each, multiprocessors=132, capability=(9, 0)) for each in DEVICES)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.devices = H200S
    return made


def memory_only(uid=ALICE, **fields):
    return spec(0.0, by_uid(uid), memory_bytes={GPU_A: GIB}, gpus=("0",), **fields)


def test_sixteen_of_the_smallest_leases_fill_a_gpu(world):
    """4 % of 132 SMs are 8 SMs: 25 leases of 4 % would be 200 SMs."""
    for _ in range(16):
        world.book.create(ROOT, spec(4, gpus=("0",)))
    with pytest.raises(NoRoom, match=r"^GPU-aaaaaaaa, SMs: 8 asked, 128 of 132 taken by 16 leases$"):
        world.book.create(ROOT, spec(4, gpus=("0",)))
    assert world.book.leases()[0].spec.sm_asked_percent == 4


def test_a_quota_that_is_under_the_smallest_step_says_so(world):
    world.change(user_sm_percent=4.0)
    with pytest.raises(NoRoom, match=r"quota of user 1000, GPU-aaaaaaaa, SMs: 8 asked, 0 of 5.28 taken"):
        world.book.create(ALICE, spec(4, gpus=("0",)))


async def test_a_client_is_told_what_it_has_and_why(world):
    world.book.create(ROOT, spec(4, gpus=("0",)))
    grant = await world.admit(1)
    assert given(grant.sm_percent, H200S[0]) == 8
    asked = "4 % was asked, and the GPU gives 8 of 132 SMs: 8 at least, and of more whole multiples of 2"
    assert grant.rule == f"lease 1 names its user 1000; {asked}"


@pytest.mark.parametrize("percent", [4, 7, 13, 29, 47, 66.6, 99.9])
async def test_the_vendor_is_told_a_share_that_gives_exactly_that(world, percent):
    """Even where the vendor's program reads it as a number of 32 bits: a hair too little would be a whole step less."""
    lease = world.book.create(ROOT, spec(percent, gpus=("0",)))
    told = of_grant(await world.admit(1), (GPU_A,)).thread_percent
    reserved = round(lease.spec.sm_percent * 132 / 100)
    assert [int(132 * (told + error) / 100) // 2 * 2 for error in (-2e-6, 0, 2e-6)] == [reserved] * 3


def test_a_lease_of_memory_alone_fits_beside_any_other(world):
    world.book.create(ROOT, spec(100, gpus=("0",)))
    lease = world.book.create(ROOT, memory_only())
    assert lease.spec.sm_percent == 0
    with pytest.raises(NoRoom, match="memory: 81920 MiB asked, 1024 MiB of 81920 MiB taken"):
        world.book.create(ROOT, replace(memory_only(), memory_bytes={GPU_A: 80 * GIB}))


async def test_its_clients_have_what_nobody_has_reserved(world):
    world.book.create(ROOT, spec(60, by_uid(BOB), gpus=("0",)))
    world.book.create(ROOT, memory_only(processes=2))
    grant = await world.admit(1)
    assert (given(grant.sm_percent, H200S[0]), dict(grant.memory_bytes)) == (54, {GPU_A: GIB // 2})
    words = "it names no share: 54 of 132 SMs, what no lease had reserved when it started"
    assert grant.rule == f"lease 2 names its user 1000; one of its 2 processes; {words}"


async def test_its_clients_take_nothing_from_who_reserves_later(world):
    """Theirs is a limit for life, not a reservation: a lease that comes finds all that is not reserved."""
    world.book.create(ROOT, memory_only())
    assert (await world.admit(1)).sm_percent == 100
    world.book.create(ROOT, spec(100, by_uid(BOB), gpus=("0",)))
    assert (await world.admit(2, BOB)).sm_percent == 100
    world.book.leave(world.book._find_process(1))
    assert given((await world.admit(3)).sm_percent, H200S[0]) == 8


async def test_a_restarted_mpsd_counts_the_same(world):
    world.book.create(ROOT, spec(4, by_uid(BOB), gpus=("0",)))
    world.book.create(ROOT, memory_only())
    await world.admit(1)
    used = dict(world.book._account.ledger.used)
    assert dict(world.restarted()._account.ledger.used) == used


async def test_what_a_group_deals_is_whole_steps(world):
    """Three of 30 % are 38 SMs each; the 38 of one that has gone are not dealt as 37.3 and the like."""
    world.change(redistribute="group", inherit_seconds=10.0)
    for uid in (ALICE, BOB, BOB + 1):
        world.book.create(ROOT, spec(30, by_uid(uid), gpus=("0",), group="g"))
    for pid, uid in enumerate((ALICE, BOB, BOB + 1), 1):
        await world.admit(pid, uid)
    world.book.leave(world.book._find_process(1))
    world.now += 20
    world.book.leave(world.book._find_process(2))
    grant = await world.admit(4, BOB)
    held = [given(each.sm_percent, H200S[0]) for each in world.book.grants().values()]
    assert held == [38, 56]
    assert grant.sm_percent * 1.32 == pytest.approx(56, abs=1e-4)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((), ""),
        ((GPU_A,), ""),
        ((GPU_A, GPU_B), ""),
        (
            (GPU_B,),
            "for its processes CUDA_VISIBLE_DEVICES counts only its own GPUs: GPU 1 is 0, and a UUID stays what it is",
        ),
    ],
)
def test_what_mps_calls_a_gpu_is_explained_where_it_is_another_number(gpus, words):
    assert renumbering(gpus, H200S) == words
