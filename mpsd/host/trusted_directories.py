"""Directories that mpsd can trust: only root and mpsd's own user can replace them.

Every directory and link on the way from / is opened by descriptor and judged (host/rules/ownership.py); no name is looked up
twice.  Prose: docs/decisions/026-a-directory-is-judged-before-it-is-used.md.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from mpsd.errors import UnusablePath
from mpsd.host.file_identity import identity_of
from mpsd.host.rules.ownership import PathEntry, judge_last, judge_on_the_way
from mpsd.host.user_lookups import ask_now, is_private_group

_GROUP_SECONDS = 1.0  # where the user database does not answer, the group counts as shared
_MOST_LINKS = 40  # as the kernel's, path_resolution(7)
_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Of a directory in which programs find files by name.  The kernel locks a directory while it writes a list of it to memory.  If
# that is a mapped file of the user's own file system, it takes as long as the user likes, and mpsd, which makes files, waits.
PUBLIC_MODE = 0o711


class NotTrusted(UnusablePath):
    """Another user controls the directory, or one on the way to it."""


class PathCheck(Struct, frozen=True):
    """The result of examining a path.  missing: names that do not exist yet.  refusal: why mpsd does not use it; "" if it does.

    tightens: mpsd removes the write permission of group and others when it opens the directory.
    """

    entry: PathEntry
    missing: tuple[str, ...]
    refusal: str
    tightens: bool = False


class Opened(Struct, frozen=True):
    """An open directory; owns the descriptor.  was_mode: the mode before mpsd tightened it; None if it did not."""

    descriptor: int
    was_mode: int | None


def look(path: Path, *, may_be_shared: bool = False) -> PathCheck:
    """Judge the directory without changing anything.  Raises OSError if the path cannot be followed."""
    with _walk(path) as way:
        if way.refusal or way.missing:
            return PathCheck(way.entry, way.missing, way.refusal)
        return PathCheck(way.entry, (), *judge_last(way.entry, os.geteuid(), may_be_shared=may_be_shared))


def open_directory(
    path: Path, *, make_mode: int | None = None, may_be_shared: bool = False, is_ours_alone: bool = False
) -> Opened:
    """Open a directory that passes the judgement, after tightening it if needed.

    make_mode: create it with this mode (less the umask) if only its last name is missing; None: do not create it.
    may_be_shared: other users may write there too; the caller must distrust every file in it.
    is_ours_alone: take from all users the permission to list it, as PUBLIC_MODE does.
    Raises NotTrusted; UnusablePath, without the path in its message, if the kernel refused.
    """
    try:
        with _walk(path, make_mode) as way:
            if way.missing and not way.refusal:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            refusal, tightens = way.refusal, False
            if not refusal:
                refusal, tightens = judge_last(way.entry, os.geteuid(), may_be_shared=may_be_shared)
            if refusal:
                raise NotTrusted(refusal)
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way.descriptor)
            taken = _WRITE if tightens else 0
            if is_ours_alone and way.entry.mode & stat.S_IROTH and os.geteuid() in (0, way.entry.uid):
                taken |= stat.S_IRGRP | stat.S_IROTH
            return Opened(descriptor, _tighten(descriptor, taken) if taken else None)
    except OSError as exc:
        words = "it is not a directory" if exc.errno == errno.ENOTDIR else exc.strerror
        raise UnusablePath(str(words)) from None



def leads_to(path: Path, descriptor: int) -> bool:
    """Return whether the path still leads to this directory, and only root and mpsd's user can write to it."""
    try:
        here, held = os.stat(path), os.fstat(descriptor)
    except OSError:
        return False
    is_same = identity_of(here) == identity_of(held)
    return is_same and held.st_uid in (0, os.geteuid()) and not _entry(str(path), descriptor).writers


def open_file(directory: int, name: str, flags: int, mode: int) -> int:
    """Open a regular file of root's or mpsd's own in an open directory; create it if it does not exist.

    A file of another user, or one with a second name, is removed first: a user who could write to the directory earlier may
    have left a file that they can still read and write, or a link to a file that others need.  Raises OSError.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: the file may be a FIFO without a reader
    with suppress(FileNotFoundError):
        if _is_foreign(os.stat(name, dir_fd=directory, follow_symlinks=False)):
            os.unlink(name, dir_fd=directory)
            flags |= os.O_EXCL
    descriptor = os.open(name, flags, mode, dir_fd=directory)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and not _is_foreign(found):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, f"{name} is not a regular file of uid {os.geteuid()}'s or root's")


def _is_foreign(found: os.stat_result) -> bool:
    return found.st_uid not in (0, os.geteuid()) or (found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode))


class _Way(Struct):
    """How far a path was followed.  descriptor: O_PATH, of the last directory that exists; entry: its facts."""

    descriptor: int
    entry: PathEntry
    missing: tuple[str, ...] = ()
    refusal: str = ""

    def enter(self, descriptor: int, entry: PathEntry) -> None:
        """Advance to this directory; takes ownership of the descriptor."""
        os.close(self.descriptor)
        self.descriptor, self.entry = descriptor, entry


@contextmanager
def _walk(path: Path, make_mode: int | None = None) -> Iterator[_Way]:
    """Follow the path name by name.  Ends early at a refusal or at a missing name.  Raises OSError."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    way = _Way(os.dup(root), _entry("/", root))
    try:
        _follow(way, list(reversed(path.parts[1:])), root, make_mode)
        yield way
    finally:
        os.close(way.descriptor)
        os.close(root)


def _follow(way: _Way, todo: list[str], root: int, make_mode: int | None) -> None:
    """Advance `way` through the names of `todo`, the last of which is next. A link's target replaces its name.

    Raises OSError.
    """
    euid, root_uid, links = os.geteuid(), os.fstat(root).st_uid, 0
    while todo:
        way.refusal = judge_on_the_way(way.entry, euid, root_uid)
        if way.refusal:
            break
        name = todo.pop()
        path = os.path.join(way.entry.path, name)
        try:
            child = _open_child(way.descriptor, path, None if todo else make_mode)
        except FileNotFoundError:
            way.missing = (name, *reversed(todo))
            break
        entry = _entry(path, child)
        if not stat.S_ISLNK(entry.mode):
            way.enter(child, entry)
            continue
        target = _read_link(child)
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        way.refusal = judge_on_the_way(entry, euid, root_uid)
        if way.refusal:
            break
        if target.startswith("/"):
            way.enter(os.dup(root), _entry("/", root))
        todo.extend(part for part in reversed(target.split("/")) if part)


def _open_child(directory: int, path: str, make_mode: int | None) -> int:
    """Open a directory or link with O_PATH; create a directory if it is missing and a mode is given.

    path: for messages; its last name is opened.  Raises OSError.
    """
    name = os.path.basename(path)
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        child = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        if make_mode is None:
            raise
        with suppress(FileExistsError):  # another process was faster: its directory is judged
            os.mkdir(name, make_mode, dir_fd=directory)
        child = os.open(name, flags, dir_fd=directory)
    mode = os.fstat(child).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        os.close(child)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return child


def _read_link(descriptor: int) -> str:
    """Return the link's target; takes ownership of the descriptor."""
    try:
        return os.readlink("", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _entry(path: str, descriptor: int) -> PathEntry:
    found = os.fstat(descriptor)
    asks = stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP  # if so, look it up
    is_private = asks and not _has_acl(descriptor) and _is_private_group(found.st_uid, found.st_gid)
    return PathEntry(path, found.st_uid, found.st_mode, is_private)


def _has_acl(descriptor: int) -> bool:
    """Return whether the directory has an access control list.

    If so, stat's group mode is the maximum of all users in the list.
    """
    try:
        os.getxattr(f"/proc/self/fd/{descriptor}", "system.posix_acl_access")
    except OSError as exc:
        return exc.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True


def _is_private_group(uid: int, gid: int) -> bool:
    """Return whether the group is root's or a user's private group.

    Most systems create a group for each user alone (umask 002 relies on it).
    """
    return gid == 0 or ask_now(lambda: is_private_group(uid, gid), default=False, seconds=_GROUP_SECONDS)


def _tighten(descriptor: int, taken: int) -> int:
    """Remove these permissions; return the mode before.  Raises OSError."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.fchmod(descriptor, mode & ~taken)
    return mode
