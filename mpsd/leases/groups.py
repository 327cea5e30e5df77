"""Which of the configured Unix groups a user is in.

Asks the user database, which may be on the network: only where a quota depends on it, and each user once in a while.
"""

import grp
import pwd
from collections.abc import Sequence

_MOST_USERS = 4096


class UnixGroups:
    """Guards that the same user is not looked up again and again; `forget` when the configuration changes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, ...]] = {}

    def of(self, uid: int, names: Sequence[str]) -> tuple[str, ...]:
        """Those of `names` that the user is a member of; the first is the one that counts for quotas."""
        if not names:
            return ()
        if uid not in self._known:
            while len(self._known) >= _MOST_USERS:
                del self._known[next(iter(self._known))]
            self._known[uid] = tuple(name for name in names if is_member(uid, name))
        return self._known[uid]

    def forget(self) -> None:
        self._known.clear()


def is_member(uid: int, name: str) -> bool:
    try:
        user, group = pwd.getpwuid(uid), grp.getgrnam(name)
    except KeyError:
        return False
    return user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem
