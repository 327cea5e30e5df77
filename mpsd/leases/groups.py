"""Find the configured Unix groups of a user.

The user database may be on the network: mpsd asks it only if a quota depends on it, and once for each user.
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
        """Return those of `names` that the user is a member of; the first one counts for quotas."""
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
