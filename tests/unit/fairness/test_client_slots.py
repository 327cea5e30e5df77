"""Which client slots one user cannot take."""

import pytest

from mpsd.fairness.client_slots import hindrance_of_slots

OPERATORS = "clients: the last 128 of 4096 are kept for operators"
FEW = "clients: the last 512 of 4096 are kept for operators and for users with fewer than 4 clients"


@pytest.mark.parametrize(
    ("own", "total", "is_operator", "expected"),
    [
        pytest.param(3583, 3583, False, "", id="the last that one user gets alone"),
        pytest.param(3584, 3584, False, FEW, id="one user, and the rest is kept"),
        pytest.param(4, 3584, False, FEW, id="a user with four has many"),
        pytest.param(3, 3584, False, "", id="a user with fewer gets a kept slot"),
        pytest.param(0, 3967, False, "", id="the last that is not an operator's"),
        pytest.param(0, 3968, False, OPERATORS, id="operators' slots"),
        pytest.param(0, 3968, True, "", id="an operator gets one"),
        pytest.param(4095, 4095, True, "", id="the last of all"),
        pytest.param(0, 4096, False, "", id="none is left, which budgets.py says"),
        pytest.param(0, 4096, True, "", id="none is left, of an operator"),
    ],
)
def test_hindrance_of_slots(own: int, total: int, is_operator: bool, expected: str) -> None:
    assert hindrance_of_slots(4096, own, total, is_operator) == expected


@pytest.mark.parametrize("most", [1, 7])
def test_of_a_few_slots_none_is_kept(most: int) -> None:
    assert not any(hindrance_of_slots(most, total, total, False) for total in range(most + 1))
