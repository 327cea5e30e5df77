"""Which of the machine's client slots, and of its leases, are kept for users with few, and for operators.  Pure.

A process has its slot until it ends, also without a connection or a context, so one user can hold as many slots as it has
processes.  Below what is kept nothing is divided: one user alone may take all of it, within its quota.  Prose: docs/leases.md,
"Budgets".
"""

from mpsd.fairness.places import Hindrance, Places

_KEPT_SHARE = 8  # one slot in so many is kept
_OPERATORS_SHARE = 4  # of these, one in so many is for operators alone
_FEW = 4


def hindrance_of_slots(
    most: int, own: int, total: int, is_operator: bool, what: str = "clients", few: int = _FEW
) -> str:
    """Return why a user with `own` of the `total` clients gets no kept slot, in words without changing figures.

    Empty if the slots in use do not reach the kept ones, and if no slot is left: the caller reports that, with the figures.
    `what`: the name of what is counted.  few: users with fewer may have kept ones.
    """
    if total >= most:
        return ""
    kept = most // _KEPT_SHARE
    operators = kept // _OPERATORS_SHARE
    places = Places(most, most, operators, kept - operators, few, times_free=most)
    hindrance = places.hindrance(own, total, is_operator)
    if hindrance is None:
        return ""
    if hindrance is Hindrance.ALL:
        return f"{what}: the last {operators} of {most} are kept for operators"
    return f"{what}: the last {kept} of {most} are kept for operators and for users with fewer than {few} {what}"
