"""Look users and groups up (passwd and group, through NSS), which may take for ever: user_database.py asks in threads.

Without trio, for programs that are not the daemon.
"""

import grp
import pwd
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

ANSWER_SECONDS = 5.0
_T = TypeVar("_T")


def ask_now(look_up: Callable[[], _T], default: _T, seconds: float = ANSWER_SECONDS) -> _T:
    """Return what the function returns, or the default if that takes longer.  Blocks: for the start, and for other threads."""
    answer: queue.SimpleQueue[_T] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(look_up()), name="mpsd-users", daemon=True).start()
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return default


def gid_of(name: str) -> int | None:
    """Return the id of a group; None if it does not exist. May block."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, OSError):
        return None


def is_member(uid: int, name: str) -> bool | None:
    """Return whether the user is in the group; None if the database does not know the user.  May block."""
    try:
        user = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return None
    try:
        group = grp.getgrnam(name)
    except (KeyError, OSError):
        return False
    return user.pw_gid == group.gr_gid or user.pw_name in group.gr_mem


def is_private_group(uid: int, gid: int) -> bool:
    """Return whether the user alone is in the group, by its name and members.  May block."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except (KeyError, OSError):
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and not set(group.gr_mem) - {user.pw_name}
