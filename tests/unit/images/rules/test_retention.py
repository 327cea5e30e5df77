"""Which images a retention removes."""

import pytest

from mpsd.images.rules.manifest import ArenaImage, Manifest
from mpsd.images.rules.retention import plan_removal
from mpsd.images.rules.transfer import partial_group
from tests.unit.images.making import facts


def image(series: str, instant: int) -> Manifest:
    return Manifest(f"{series}{instant}", "", instant, instant, bytes(16), (ArenaImage(facts(name=series), b""),))


IMAGES = [image("a", 10), image("a", 30), image("a", 20), image("b", 5)]


@pytest.mark.parametrize(
    ("keep", "age", "gone"),
    [
        pytest.param(None, None, [], id="no limit"),
        pytest.param(2, None, ["a10"], id="the newest two"),
        pytest.param(1, None, ["a10", "a20"], id="the newest"),
        pytest.param(0, None, ["a10", "a20"], id="the newest of a series stays"),
        pytest.param(None, 15, ["a10"], id="by age"),
        pytest.param(None, 1, ["a10", "a20"], id="however old the newest is"),
        pytest.param(2, 5, ["a10", "a20"], id="either"),
    ],
)
def test_what_is_removed(keep: int | None, age: float | None, gone: list[str]) -> None:
    assert sorted(each.name for each in plan_removal(IMAGES, 30.0, keep, age)) == gone


@pytest.mark.parametrize(("keep", "age", "gone"), [(None, 10, True), (None, 30, False), (0, None, False), (1, None, False)])
def test_what_is_left_of_an_abandoned_transfer_goes_by_its_own_age(keep: int | None, age: float | None, gone: bool) -> None:
    """It was the newest of a series of its own, and stayed for ever; an old image may be received now."""
    partial = Manifest(
        "a10.partial-3", partial_group("a10"), 10, 80, bytes(16), (ArenaImage(facts(name="a10.partial-3"), b""),)
    )
    assert plan_removal([partial], 100.0, keep, age) == ([partial] if gone else [])
