"""Decide by owners and modes which directories mpsd relies on, and explain why it refuses others.

mpsd relies on a directory if only root and mpsd's own user can replace it or anything in it.
Prose: docs/decisions/026-a-directory-is-judged-before-it-is-used.md.
"""

import stat

from msgspec import Struct

_GROUP_OR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class PathEntry(Struct, frozen=True):
    """A directory or symbolic link on the way to a directory.  is_private_group: only the owner, or root, is in its group."""

    path: str
    uid: int
    mode: int
    is_private_group: bool = False

    @property
    def writers(self) -> str:
        """Which users except the owner may write to it, in words; "" if none."""
        if self.mode & stat.S_IWOTH:
            return "every user"
        return "its group" if self.mode & stat.S_IWGRP and not self.is_private_group else ""

    @property
    def is_sticky(self) -> bool:
        """Whether only the owner of a file there, and of the directory, can remove or rename it."""
        return bool(self.mode & stat.S_ISVTX)

    def __str__(self) -> str:
        return f"{self.path} (uid {self.uid}, mode {stat.S_IMODE(self.mode):04o})"


def judge_on_the_way(entry: PathEntry, euid: int, root_uid: int) -> str:
    """Return why a directory above the wanted one cannot be relied on; "" if it can.

    root_uid: the owner of /, who could replace everything in any case; another uid than 0 in some containers.
    """
    if entry.uid not in (0, euid, root_uid):
        return (
            f"{entry} belongs to another user, who could put another directory in its place; "
            f"accepted: directories of root and of uid {euid}"
        )
    if stat.S_ISLNK(entry.mode) or not entry.writers or entry.is_sticky:
        return ""
    return (
        f"{entry.writers} may rename what is in {entry}, and could put another directory in its place: "
        f"chmod go-w {entry.path}; or chmod +t {entry.path} if every user needs it, as for /tmp"
    )


def judge_last(entry: PathEntry, euid: int, *, may_be_shared: bool) -> tuple[str, bool]:
    """Return why the wanted directory is not used, "" if it is; and whether its mode has to be tightened first."""
    if entry.uid not in (0, euid):
        return (
            f"{entry} belongs to another user, who could replace what mpsd makes there; accepted: root's and uid {euid}'s. "
            f"Name another directory; or, when nothing in it is needed, as root: rm -r {entry.path}"
        ), False
    if not entry.mode & _GROUP_OR_OTHERS:
        return "", False
    is_tightened = entry.uid == euid and not entry.is_sticky
    if is_tightened or may_be_shared or not entry.writers:
        return "", is_tightened
    if entry.is_sticky:
        return (
            f"{entry} is shared: {entry.writers} may make files there, also where clients look for mpsd. "
            f"Name a directory below it; or, when only mpsd uses it: chmod 0711 {entry.path}"
        ), False
    return f"{entry} may be written to by {entry.writers}, and uid {euid} may not change that: chmod go-w {entry.path}", False
