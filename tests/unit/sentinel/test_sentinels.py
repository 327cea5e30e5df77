"""The sentinels of all domains: the test that proves them, and the faults for which they end."""

from types import SimpleNamespace

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import VendorFailed
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.sentinel.protection import SentinelSettings
from mpsd.sentinel.sentinels import Sentinels


@pytest.mark.parametrize("is_required", [True, False])
async def test_a_test_that_could_not_be_made_is_made_again_where_no_client_starts_without(
    autojump_clock: object, is_required: bool
) -> None:
    """Where the others start without, they use the GPU by now, and the test's exception would stop them for a moment."""
    tests = 0

    async def prove() -> str:
        nonlocal tests
        tests += 1
        if tests < 3:
            raise VendorFailed("the GPU is full")
        return ""

    settings = SentinelSettings(True, is_required, 10.0, 0.0, None)  # type: ignore[arg-type]
    sentinels = Sentinels(SimpleNamespace(notify=lambda: None), settings, prove)  # type: ignore[arg-type]
    with trio.move_on_after(600):
        await sentinels._test()
    assert (tests, sentinels.why_off) == ((3, "") if is_required else (1, "the GPU is full"))


async def test_a_test_that_failed_is_not_made_again(autojump_clock: object) -> None:
    """Each has an SM exception, which is not contained here."""
    tests = 0

    async def prove() -> str:
        nonlocal tests
        tests += 1
        return "another client did not go on"

    settings = SentinelSettings(True, True, 10.0, 0.0, None)  # type: ignore[arg-type]
    sentinels = Sentinels(SimpleNamespace(notify=lambda: None), settings, prove)  # type: ignore[arg-type]
    with trio.move_on_after(600):
        await sentinels._test()
    assert (tests, sentinels.why_off) == (1, "another client did not go on")


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        pytest.param(Observation(Source.UVM_EVENTS, 0, FaultClass.MMU, is_proof=True), True, id="a memory fault"),
        pytest.param(Observation(Source.UVM_EVENTS, 0, FaultClass.MMU), False, id="of another space, perhaps"),
        pytest.param(Observation(Source.KERNEL_LOG, 0, xid=31), True, id="that the driver reports"),
        pytest.param(Observation(Source.KERNEL_LOG, 0, xid=31, is_contained=True), False, id="contained"),
        pytest.param(Observation(Source.KERNEL_LOG, 0, xid=13), False, id="an SM exception"),
        pytest.param(Observation(Source.KERNEL_LOG, 0, xid=63), False, id="another Xid"),
    ],
)
async def test_a_memory_fault_ends_the_sentinel(seen: Observation, ends: bool) -> None:
    """A client with two VA spaces faulted without proof: the stopped client stayed, and kept the server from all others."""
    ended: list[str] = []

    async def give_way() -> None:
        ended.append("d2")

    settings = SentinelSettings(True, False, 10.0, 0.0, None)  # type: ignore[arg-type]
    sentinels = Sentinels(SimpleNamespace(notify=lambda: None), settings)  # type: ignore[arg-type]
    sentinels._protections = {"d2": SimpleNamespace(watchers={"GPU-a": None}, give_way=give_way)}  # type: ignore[dict-item]
    async with trio.open_nursery() as sentinels._nursery:
        sentinels.give_way(replace(seen, domain="default"))
        sentinels.give_way(replace(seen, domain="d2"))
        await trio.testing.wait_all_tasks_blocked()
    assert bool(ended) is ends
