"""Divide the places for connections among users.  Pure.

    all places
    |-- for everybody: each user at most `per_user`, and no more than `times_free` times what is free of these
    |-- `first`: for users who have fewer than `few` places
    `-- `operators`: for operators

So a few users with as many places as they can get leave some for others, and only as many users as `first` has places can lock
the next one out.  No user loses a place.
"""

from enum import Enum, auto

from msgspec import Struct

OPERATORS_SHARE = 8  # one place in so many is reserved for operators: users must not lock them out
# One user alone gets four fifths of the shared places, two get four ninths each.
_TIMES_FREE = 4


class Hindrance(Enum):
    """Why a user gets no further place."""

    OWN = auto()  # this user has as many as a user may have
    SHARE = auto()  # the places left are for users who have fewer
    ALL = auto()  # no place is left


class Places(Struct, frozen=True):
    most: int
    per_user: int
    operators: int
    first: int
    few: int
    times_free: int = _TIMES_FREE

    def hindrance(self, own: int, total: int, is_operator: bool) -> Hindrance | None:
        """Return why a user with `own` of `total` taken places gets no other; None if it does."""
        if own >= self.per_user:
            return Hindrance.OWN
        left = self.most - total - (0 if is_operator else self.operators)
        if left <= 0:
            return Hindrance.ALL
        if is_operator or own < self.few or own < self.times_free * (left - self.first):
            return None
        return Hindrance.SHARE
