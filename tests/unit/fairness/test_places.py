"""The distribution of places among users who take all they can get."""

import pytest

from mpsd.fairness.places import Hindrance, Places

PLACES = Places(most=512, per_user=64, operators=64, first=64, few=1)


@pytest.mark.parametrize(
    ("own", "total", "is_operator", "expected"),
    [
        pytest.param(0, 0, False, None, id="the first"),
        pytest.param(63, 63, False, None, id="the last that one user may have"),
        pytest.param(64, 64, False, Hindrance.OWN, id="one too many of one user"),
        pytest.param(64, 64, True, Hindrance.OWN, id="operators have no more"),
        pytest.param(1, 384, False, Hindrance.SHARE, id="what is left is for users who have none"),
        pytest.param(0, 384, False, None, id="who has none has a place"),
        pytest.param(0, 447, False, None, id="the last that is not an operator's"),
        pytest.param(0, 448, False, Hindrance.ALL, id="operators' places"),
        pytest.param(0, 448, True, None, id="an operator has one of those"),
        pytest.param(30, 511, True, None, id="the last of all"),
        pytest.param(0, 512, True, Hindrance.ALL, id="full"),
        pytest.param(39, 374, False, None, id="less than four times what is free"),
        pytest.param(40, 374, False, Hindrance.SHARE, id="four times what is free"),
    ],
)
def test_hindrance(own: int, total: int, is_operator: bool, expected: Hindrance | None) -> None:
    assert PLACES.hindrance(own, total, is_operator) is expected


@pytest.mark.parametrize("users", [1, 8, 30, 60])
def test_greedy_users_leave_a_place_for_the_next(users: int) -> None:
    """Eight users with 64 connections each locked every other one out."""
    held = dict.fromkeys(range(users), 0)
    for uid in held:
        while PLACES.hindrance(held[uid], sum(held.values()), False) is None:
            held[uid] += 1
    assert all(held.values())
    assert PLACES.hindrance(0, sum(held.values()), False) is None
    assert PLACES.hindrance(0, sum(held.values()), True) is None


def test_a_small_number_of_places_can_be_used() -> None:
    small = Places(most=4, per_user=64, operators=0, first=0, few=1)
    total = 0
    while small.hindrance(total, total, False) is None:
        total += 1
    assert total == 4
