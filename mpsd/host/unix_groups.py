"""Remember the configured Unix groups of users.

mpsd asks the user database only if a quota depends on it, and once for each user; never on the event loop (user_database.py).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import structlog
import trio

from mpsd.host.user_database import UserDatabase
from mpsd.host.user_lookups import ask_now, is_member

log = structlog.get_logger()
_SILENT = "the user database does not answer"
_MOST_USERS = 1 << 16  # more than can have a lease, a client or a place in the queue; the longest unused ones go first


class UnixGroups:
    """Guards that the same user is not looked up again and again; `forget` when the configuration changes.

    share_of: the uid that a uid counts as.  Of each of those one look-up runs at a time: a user with many uids must not take
    all threads that wait for a slow database.
    """

    def __init__(self, share_of: Callable[[int], int] = lambda uid: uid, users: UserDatabase | None = None) -> None:
        self._known: dict[int, tuple[str, ...]] = {}
        self._stale: set[int] = set()  # of those: to be asked again
        self._forgotten = 0  # how many times: an answer to an earlier question is stale at once
        self._share_of = share_of
        self._users = users or UserDatabase()
        self._turns: WeakValueDictionary[int, trio.Lock] = WeakValueDictionary()  # by share

    def of(self, uid: int, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of `names` that the user is known to be a member of; the first one counts for quotas."""
        known = self._known.get(uid, ())
        return tuple(name for name in names if name in known)

    async def learn(self, uid: int, names: Sequence[str]) -> bool:
        """Ask for the user's groups, unless they are known; return whether they are now."""
        if not self._lacks(uid, names):
            return True
        share = self._share_of(uid)
        turn = self._turns.setdefault(share, trio.Lock())
        async with turn:
            try:
                for each in {uid, share}:  # quotas are those of the share
                    await self._learn_one(each, names, share)
            except trio.TooSlowError:
                log.warning("users.silent", uid=uid, why=_SILENT, effect="requests of this user wait")
                return False
        return True

    async def _learn_one(self, uid: int, names: Sequence[str], share: int) -> None:
        """Raises TooSlowError."""
        if self._lacks(uid, names):
            forgotten = self._forgotten
            self._note(uid, await self._users.ask(partial(_groups_of, uid, names), share))
            if forgotten != self._forgotten:
                self._stale.add(uid)

    def learn_now(self, uids: Iterable[int], names: Sequence[str]) -> None:
        """Ask for the groups of all these users.  Blocks for a bounded time: for the start."""
        asked = {each for uid in uids for each in (uid, self._share_of(uid))} if names else set()
        if not asked:
            return
        found = ask_now(lambda: {uid: _groups_of(uid, names) for uid in asked}, None)
        if found is None:
            log.warning("users.silent", uids=len(asked), why=_SILENT, effect="their present leases count for no group")
        for uid, answer in (found or {}).items():
            self._note(uid, answer)

    def forget(self) -> None:
        """Ask for each user again when the next request comes; until then what is known counts."""
        self._stale = set(self._known)
        self._forgotten += 1

    def _lacks(self, uid: int, names: Sequence[str]) -> bool:
        return bool(names) and (uid not in self._known or uid in self._stale)

    def _note(self, uid: int, found: tuple[tuple[str, ...], bool]) -> None:
        """A user whom the database does not know is asked for again: while sssd is down, it knows none of a network's users."""
        groups, is_user_known = found
        self._known.pop(uid, None)
        self._stale.discard(uid)
        while len(self._known) >= _MOST_USERS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._stale.discard(oldest)
        self._known[uid] = groups
        if not is_user_known:
            self._stale.add(uid)


def _groups_of(uid: int, names: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return those of `names` that the user is a member of, and whether the database knows the user."""
    answers = {name: is_member(uid, name) for name in names}
    return tuple(name for name in names if answers[name]), None not in answers.values()
