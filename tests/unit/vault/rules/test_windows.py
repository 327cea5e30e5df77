"""Where windows are."""

import pytest

from mpsd.model.arena import FIRST_ADDRESS, LAST_ADDRESS, WINDOW_UNIT
from mpsd.vault.rules.windows import may_end_at, place, window_bytes


@pytest.mark.parametrize(
    ("windows", "size", "expected"),
    [
        pytest.param([], 10, 100, id="the first"),
        pytest.param([], 900, 100, id="all there is"),
        pytest.param([], 901, None, id="a byte more than there is"),
        pytest.param([(100, 200)], 10, 200, id="behind"),
        pytest.param([(150, 200)], 50, 100, id="before"),
        pytest.param([(150, 200)], 51, 200, id="not quite before"),
        pytest.param([(300, 400), (100, 200)], 100, 200, id="a gap that fits exactly, in any order"),
        pytest.param([(300, 400), (100, 200)], 101, 400, id="a gap that is too short"),
        pytest.param([(100, 1000)], 1, None, id="full"),
        pytest.param([(100, 990)], 10, 990, id="the last"),
    ],
)
def test_the_lowest_place_that_fits(windows, size, expected):
    assert place(windows, size, 100, 1000) == expected


def test_no_two_windows_overlap_however_many_there_are():
    windows = []
    for number in range(500):
        size = (number % 7 + 1) * WINDOW_UNIT
        base = place(windows, size)
        assert base is not None
        assert FIRST_ADDRESS <= base <= base + size <= LAST_ADDRESS
        assert all(base + size <= begin or base >= end for begin, end in windows)
        windows.append((base, base + size))
        if number % 3 == 2:
            windows.pop(number % len(windows))


@pytest.mark.parametrize(
    ("windows", "end", "expected"),
    [
        pytest.param([], 1000, True, id="nobody else"),
        pytest.param([], 1001, False, id="beyond what there is"),
        pytest.param([(0, 100), (300, 400)], 300, True, id="up to the next"),
        pytest.param([(0, 100), (300, 400)], 301, False, id="into the next"),
    ],
)
def test_a_window_grows_as_far_as_it_is_free(windows, end, expected):
    assert may_end_at(windows, 100, end, 1000) == expected


@pytest.mark.parametrize(
    ("capacity", "asked", "expected"),
    [
        (1, None, WINDOW_UNIT),
        (WINDOW_UNIT, None, 2 * WINDOW_UNIT),
        (WINDOW_UNIT, WINDOW_UNIT, WINDOW_UNIT),
        (1, WINDOW_UNIT + 1, 2 * WINDOW_UNIT),
    ],
)
def test_windows_are_whole_units_and_twice_the_capacity(capacity, asked, expected):
    assert window_bytes(capacity, asked) == expected
