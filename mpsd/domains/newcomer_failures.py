"""Count the newcomers of one domain that ended without a context: in a row, and in a row for each user."""

from collections import deque

from msgspec import Struct, field

MOST_FAILURES = 3  # in a row: a program may end between its connection and its context
_LAST = MOST_FAILURES + 1  # the users among them are compared
_MOST_USERS = 1024


class NewcomerFailures(Struct):
    """Guards that both counts are bounded, and begin again together with fresh servers.  A user is counted by its share.

    last: the user and the container of each of the last failures, since any newcomer got a context; None: mpsd does not know
    the user.  of_user: the failures of each user since a newcomer of that user got one.
    """

    last: deque[tuple[int | None, str]] = field(default_factory=lambda: deque(maxlen=_LAST))
    of_user: dict[int, int] = field(default_factory=dict)

    @property
    def failing_users(self) -> frozenset[int]:
        """The users with MOST_FAILURES or more."""
        return frozenset(share for share, count in self.of_user.items() if count >= MOST_FAILURES)

    def count(self, share: int) -> int:
        """Add a failure of this user, and return its failures.  The user that failed longest ago is forgotten for a new one."""
        self.of_user[share] = count = self.of_user.pop(share, 0) + 1
        if len(self.of_user) > _MOST_USERS:
            del self.of_user[next(iter(self.of_user))]
        return count

    def clear(self) -> None:
        self.last.clear()
        self.of_user.clear()
