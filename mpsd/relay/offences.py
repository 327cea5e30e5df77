"""Count which clients have kept a domain waiting: they wait longer for their turn there, and get less patience."""

import math
from collections import Counter
from collections.abc import Callable

import trio

from mpsd.fairness.rates import Rate, Rates
from mpsd.model.process import ProcessId

_REMEMBERED_SECONDS = 60.0
_MOST_USERS = 1024
_STAYS = Rate(1.0, 1 / _REMEMBERED_SECONDS)  # as long as one client may stay, in a minute, by many short stays


class Offences:
    """Guards that where users share a server, a user does not get the patience for a new client with each new process.

    share_of: the share in which a user counts, if users share servers; None: a process harms its own user alone.
    """

    def __init__(self, share_of: Callable[[int], int] | None = None) -> None:
        self._share_of = share_of
        self._by_process: Counter[ProcessId | None] = Counter()
        self._at: dict[int, float] = {}  # when the minute of each share began (trio time), the oldest first
        self._stays = Rates(_STAYS, most_keys=_MOST_USERS)
        self._counted_until: dict[tuple[int, str], float] = {}  # by share and domain (trio time), the oldest first

    def note(self, process: ProcessId | None, uid: int) -> None:
        if process is not None:  # those that mpsd cannot see are of several users
            self._by_process[process] += 1
        if self._share_of is not None and not self.is_remembered(uid):
            share = self._share_of(uid)
            self._at.pop(share, None)
            self._at[share] = trio.current_time()
            while len(self._at) > _MOST_USERS:
                del self._at[next(iter(self._at))]

    def note_stay(self, process: ProcessId | None, uid: int, domain: str, seconds: float, longest: float) -> None:
        """Count that one of a user's clients kept others out of a domain for so long; `longest` in a minute is no offence.

        Without it a user whose clients leave just before their time is over would delay each connection of others by that.
        The time in which several clients of a user did so together counts once.
        """
        if self._share_of is None:
            return
        share, now = self._share_of(uid), trio.current_time()
        seconds = min(seconds, now - self._counted_until.pop((share, domain), -math.inf))
        self._counted_until[share, domain] = now
        while len(self._counted_until) > _MOST_USERS:
            del self._counted_until[next(iter(self._counted_until))]
        if not self._stays.allows(share, now, seconds / longest):
            self.note(process, uid)

    def of(self, process: ProcessId | None, uid: int) -> int:
        """Return how many the process has, and one more in the minute after one of its user, in whatever process."""
        return self._by_process[process] + self.is_remembered(uid)

    def is_remembered(self, uid: int) -> bool:
        """Return whether its user is within the minute.  An offence in it begins no new one: patience is short then."""
        last = self._at.get(self._share_of(uid), -math.inf) if self._share_of else -math.inf
        return trio.current_time() - last < _REMEMBERED_SECONDS

    def forget(self, process: ProcessId | None) -> None:
        """Forget a process without connections."""
        self._by_process.pop(process, None)
