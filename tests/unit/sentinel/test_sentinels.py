"""The sentinels of all domains: the test that proves them."""

from types import SimpleNamespace

import pytest
import trio

from mpsd.errors import VendorFailed
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
