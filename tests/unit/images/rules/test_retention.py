"""Which images a retention removes."""

import pytest

from mpsd.images.rules.manifest import ArenaImage, Manifest
from mpsd.images.rules.retention import plan_removal
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
