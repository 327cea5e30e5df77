"""Users who wait take turns: one thing of each, then the next of each.  Pure.

A user is known by the uid that its things count against (uid_ranges.py).
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Guards that no user gets a second turn while another waits for a first, and that each user's entries keep their order.

    rank: of one user's entries, those of a lower rank go first.
    """

    def __init__(self, rank: Callable[[T], int] = lambda _: 0) -> None:
        self._rank = rank
        self._waiting: dict[int, deque[T]] = {}  # by uid, in the order of their turns; none is empty
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for waiting in self._waiting.values():
            yield from waiting

    def of(self, uid: int) -> int:
        """Return how many entries of this user wait."""
        return len(self._waiting.get(uid, ()))

    def has_others_than(self, uid: int) -> bool:
        """Return whether entries of another user wait."""
        return len(self._waiting) > (uid in self._waiting)

    def put(self, uid: int, thing: T) -> None:
        waiting = self._waiting.setdefault(uid, deque())
        place = len(waiting)
        while place and self._rank(waiting[place - 1]) > self._rank(thing):
            place -= 1
        waiting.insert(place, thing)
        self._count += 1

    def remove(self, uid: int, thing: T) -> None:
        waiting = self._waiting[uid]
        waiting.remove(thing)
        self._count -= 1
        if not waiting:
            del self._waiting[uid]

    def first(self, is_late: Callable[[T], bool]) -> T | None:
        """Return what the next turn is for, and leave it there: of late users only if no other waits; None if nothing waits."""
        firsts = [waiting[0] for waiting in self._waiting.values()]
        return next((thing for thing in firsts if not is_late(thing)), firsts[0] if firsts else None)

    def rest(self, uid: int) -> None:
        """Let the user go to the end of the queue: the turn is over."""
        if waiting := self._waiting.pop(uid, None):
            self._waiting[uid] = waiting

    def put_newest(self, uid: int, thing: T, most: int, most_in_all: int) -> T | None:
        """As `put`; where more than `most` things of this user would wait then, the oldest of them no longer does: returned.

        Where more than `most_in_all` would wait, it is the oldest of the user with most; of several such, of the last in line.
        """
        self.put(uid, thing)
        if self.of(uid) > most:
            return self._drop_oldest(uid)
        if self._count > most_in_all:
            return self._drop_oldest(max(reversed(self._waiting), key=self.of))
        return None

    def _drop_oldest(self, uid: int) -> T:
        waiting = self._waiting[uid]
        self._count -= 1
        if len(waiting) == 1:
            del self._waiting[uid]
        return waiting.popleft()

    def take(self, most: int) -> Iterator[T]:
        """Take one entry of each of at most so many users, each as it is asked for; the user goes to the end of the queue."""
        for uid in list(self._waiting)[:most]:
            waiting = self._waiting.pop(uid)
            if len(waiting) > 1:
                self._waiting[uid] = waiting
            self._count -= 1
            yield waiting.popleft()
