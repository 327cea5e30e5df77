"""The directory into which clients write their CUDA core dumps: read, and kept small.  Blocks; no trio.

    cores/           mode 1733: every user may create files, but not list them, nor touch another user's
        core.HOST.PID   a dump that is being written, or waits to be read; host and pid as its writer sees them
        kept/           mode 0711, mpsd's alone: dumps with an exception, for their owners, who get the name
            core.HOST.PID.SECONDS

All files there are untrusted.  A file counts if it is a regular one with one name, in the file system of the directory: a user
can mount a file system on an own file, which then may never answer.  It belongs to its owner, and is complete once its
writer has closed it, or has not touched it for a while, and no process has it open for writing.  A dump that was read is
deleted or kept; any other file is deleted after a minute, and the oldest sooner when the limit is exceeded.  As in any
temporary directory, a user can still fill it between two looks, continue to write a deleted file that is open, or make
directories.  On a disk that counts against the user's quota.  A tmpfs has none, and that of /run holds mpsd's state: root's
mpsd uses no directory by which alone users could fill a tmpfs.  Users take turns: no user's files keep those of another from
being read, or push them out.  A user who may write there can hold the directory's lock, or a file's, for any time, as by a
write from memory of a file server that does not answer: each call here can then wait so long, and no signal ends that.
Prose: docs/faults.md.
"""

import contextlib
import fcntl
import os
import re
import signal
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

from mpsd.errors import ProtocolError, UnusablePath
from mpsd.faults.sources.core_dump_file import CoreFile, parse_core
from mpsd.host.file_writers import Lineage
from mpsd.host.syscalls import is_on_tmpfs
from mpsd.host.trusted_directories import open_directory

CORES = "cores"  # its name in the pipe directory, which containers share with mpsd
MODE, KEPT_MODE = 0o1733, 0o711
_KEPT = "kept"
_NAME = re.compile(r"(?:[A-Za-z0-9._-]{1,80}\.)?([1-9][0-9]{0,9})")  # CUDA_COREDUMP_FILE may end in %p alone
_QUIET_SECONDS = 5.0  # no measured dump took longer than one
_STRAY_SECONDS = 60.0
_LOOK_SECONDS = 1.0  # time to read dumps; the rest waits for the next look
_MOST_SEEN = 4096
_MOST_ENTRIES = 1 << 16  # with directories, which stay: 0.1 s (measured)
_MOST_FILES = 256


class Dump(Struct, frozen=True):
    """A dump that was read.  core: None if it could not be parsed, `why` has the reason.

    age_seconds: since it was written.  kept_as: "" if deleted.  writers: as FileWriters.take returns them.  may_change: mpsd
    could not keep other processes from writing to it while it read it: the file system does not support leases, or the file is
    another user's and mpsd lacks CAP_LEASE.
    """

    name: str
    pid: int
    uid: int
    age_seconds: float
    core: CoreFile | None
    why: str = ""
    kept_as: str = ""
    writers: frozenset[Lineage] = frozenset()
    may_change: bool = False


class _File(Struct, frozen=True):
    name: str
    uid: int
    size: int
    changed_at: float  # ctime: unlike mtime, no user can set it


class CoreDirectory:
    """Guards that the directory stays within its limits, and that each dump is reported once.

    kept: how many dumps are kept.  total_bytes: the limit on the kept files, and again on those that wait.
    clock: seconds since the epoch.  share_of: the uid that a uid counts as.  writers_of: who used an open file; asked
    while it still has its name.  may_read: whether a file of this user may be read, asked before each; else mpsd deletes it.
    Raises UnusablePath when the directory cannot be created, is not mpsd's own, or would let users fill a tmpfs.
    """

    def __init__(
        self,
        path: Path,
        kept: int,
        total_bytes: int,
        clock: Callable[[], float] = time.time,
        share_of: Callable[[int], int] = int,
        writers_of: Callable[[int], frozenset[Lineage]] = lambda file: frozenset(),
        may_read: Callable[[int], bool] = lambda uid: True,
    ) -> None:
        self._clock, self._share_of, self._writers_of, self._may_read = clock, share_of, writers_of, may_read
        self._kept = kept
        self._total_bytes = total_bytes
        self._closed: set[str] = set()
        self._directory, self._keep = _open_own(path), -1
        try:
            self._open_to_users(path)
        except UnusablePath:
            self.close()
            raise
        except OSError as exc:
            self.close()
            raise UnusablePath(f"{path}: {exc.strerror}") from None

    def close(self) -> None:
        os.close(self._directory)
        if self._keep >= 0:
            os.close(self._keep)

    @property
    def place(self) -> Path:
        """A path that leads to this directory, even if another takes its name."""
        return Path(f"/proc/self/fd/{self._directory}")

    def look(self, closed: Collection[str]) -> list[Dump]:
        """Read the complete dumps, each once, and tidy up.

        closed: names of files that their writers closed since the last look.
        """
        self._closed.update(filter(_NAME.fullmatch, closed))
        end = time.monotonic() + _LOOK_SECONDS
        dumps = []
        files = _files(self._directory, self._closed)
        complete = self._in_turns(filter(self._is_complete, files), lambda file: file.changed_at)
        for file in complete:
            if time.monotonic() > end:
                break
            if dump := self._read(file):
                dumps.append(dump)
        unread = (file.name for file in complete if file.name in self._closed)
        self._closed = set(islice(unread, _MOST_FILES))  # in turns: no user's push out another's
        self._tidy()
        return dumps

    @property
    def has_more(self) -> bool:
        """Whether the last look ended before all complete files were read."""
        return bool(self._closed)

    def _open_to_users(self, path: Path) -> None:
        """Create `kept`, then let every user write to the directory.  Raises UnusablePath, OSError."""
        if os.geteuid() == 0 and _opens_a_tmpfs(self._directory):
            os.fchmod(self._directory, 0o700)  # an earlier mpsd may have left it open to all
            raise UnusablePath("users could fill this tmpfs, to which they cannot write elsewhere")
        self._keep = _open_own(path / _KEPT)
        os.fchmod(self._keep, KEPT_MODE)
        os.fchmod(self._directory, MODE)  # last: until then no other user could create `kept` in it

    def _in_turns(self, files: Iterable[_File], order: Callable[[_File], float]) -> list[_File]:
        """Return the files in this order, but the first of each user before the second of any."""
        counts: Counter[int] = Counter()
        ranked = []
        for file in sorted(files, key=order):
            share = self._share_of(file.uid)
            ranked.append((counts[share], file))
            counts[share] += 1
        return [file for _, file in sorted(ranked, key=lambda each: each[0])]

    def _is_complete(self, file: _File) -> bool:
        return _NAME.fullmatch(file.name) is not None and (
            file.name in self._closed or self._clock() - file.changed_at >= _QUIET_SECONDS
        )

    def _read(self, file: _File) -> Dump | None:
        """Read a dump; None if it has gone, or is not a dump."""
        self._closed.discard(file.name)
        try:
            descriptor = _open_regular(file.name, self._directory)
        except OSError:
            return None  # a link, or a file that mpsd may not read: removed later
        if descriptor is None:
            return None
        try:
            return self._take(file.name, descriptor, may_change=not _keep_writers_out(descriptor))
        except OSError:
            return None  # a process has it open for writing, or the disk fails: read later, or removed
        finally:
            os.close(descriptor)

    def _take(self, name: str, descriptor: int, *, may_change: bool) -> Dump | None:
        found = os.fstat(descriptor)
        matched = _NAME.fullmatch(name)
        assert matched is not None, "only such files are complete"
        age_seconds = max(self._clock() - found.st_ctime, 0.0)
        core, why = None, ""
        if not self._may_read(found.st_uid):
            self._put_away(name, descriptor, 0, is_worth_keeping=False)
            return None
        try:
            core = parse_core(lambda offset, size: os.pread(descriptor, size, offset), found.st_size)
        except ProtocolError as exc:
            if age_seconds < _QUIET_SECONDS:
                return None  # its writer may open it again
            why = str(exc)
        writers = self._writers_of(descriptor)
        kept_as = self._put_away(name, descriptor, int(found.st_ctime), core is not None and core.has_exception)
        return Dump(name, int(matched[1]), found.st_uid, age_seconds, core, why, kept_as, writers, may_change)

    def _put_away(self, name: str, descriptor: int, seconds: int, is_worth_keeping: bool) -> str:
        """Keep or delete the file; return where it is kept, "" if it is deleted.

        It links the file that was read, and does not rename: its owner may have given the name to another file.
        """
        kept_as = ""
        with contextlib.suppress(OSError):  # its owner has removed it, or the file system has no links
            if is_worth_keeping and self._kept:
                os.link(_path_of(descriptor), f"{name}.{seconds}", dst_dir_fd=self._keep, follow_symlinks=True)
                kept_as = f"{_KEPT}/{name}.{seconds}"
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._directory)
        return kept_as

    def _tidy(self) -> None:
        now = self._clock()
        waiting = self._in_turns(_files(self._directory), lambda file: -file.changed_at)
        for file in _beyond(waiting, _MOST_FILES, self._total_bytes):
            _delete(self._directory, file.name)
        for file in waiting:
            if now - file.changed_at >= _STRAY_SECONDS:
                _delete(self._directory, file.name)
        kept = self._in_turns(_files(self._keep), lambda file: -file.changed_at)
        for file in _beyond(kept, self._kept, self._total_bytes):
            _delete(self._keep, file.name)


def _open_own(path: Path) -> int:
    """Open the directory, creating it for mpsd alone if missing, in a directory that can be trusted.  Raises UnusablePath."""
    try:
        parent = open_directory(path.parent, may_be_shared=True).descriptor
    except UnusablePath as exc:
        raise UnusablePath(f"{path}: {exc}") from None
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, 0o700, dir_fd=parent)
        descriptor = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as exc:
        raise UnusablePath(f"{path}: {exc.strerror}") from None
    finally:
        os.close(parent)
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        os.close(descriptor)
        raise UnusablePath(f"{path} belongs to user {owner}")
    return descriptor


def _opens_a_tmpfs(directory: int) -> bool:
    """Return whether it is on a tmpfs, and users can write to no directory above it there, as they can to /tmp.

    False too if a file system of its own is mounted at it, which holds nothing else.
    """
    found, up, modes = os.fstat(directory), "..", []
    while (above := os.stat(up, dir_fd=directory)).st_dev == found.st_dev and above.st_ino != found.st_ino:
        modes.append(above.st_mode)
        found, up = above, f"{up}/.."
    return bool(modes) and is_on_tmpfs(directory) and not any(mode & stat.S_IWOTH for mode in modes)


def _open_regular(name: str, directory: int) -> int | None:
    """Open a regular file with one name.  Returns None for any other without opening it, since opening alone can have effects.

    Raises OSError.
    """
    with _open_path(name, directory) as looked_at:
        if looked_at is None:
            return None
        found = os.fstat(looked_at)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            return None
        return os.open(_path_of(looked_at), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


@contextlib.contextmanager
def _open_path(name: str, directory: int) -> Iterator[int | None]:
    """Open the path alone, which asks no file system of a mount on it; None if it has one.  Raises OSError."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield found if _mount_of(found) == _mount_of(directory) else None
    finally:
        os.close(found)


def _mount_of(descriptor: int) -> str:
    with open(f"/proc/self/fdinfo/{descriptor}") as facts:
        return next(line for line in facts if line.startswith("mnt_id:"))


def _keep_writers_out(descriptor: int) -> bool:
    """Take a lease: a process that opens the file for writing waits until mpsd closes it.  False if
    it cannot have one, as without CAP_LEASE for a file of another user.

    Raises BlockingIOError if a process has it open for writing.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # sent when a process waits; ignored, unlike SIGIO
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _path_of(descriptor: int) -> str:
    """Return a path to the file behind the descriptor, independent of its name."""
    return f"/proc/self/fd/{descriptor}"


def _files(directory: int, known: Iterable[str] = ()) -> Iterator[_File]:
    """Yield all entries but directories and mounts; the known ones, and the first few thousand others."""
    with os.scandir(directory) as entries:
        files = (entry.name for entry in islice(entries, _MOST_ENTRIES) if not entry.is_dir(follow_symlinks=False))
        for name in dict.fromkeys((*known, *islice(files, _MOST_SEEN))):
            try:
                with _open_path(name, directory) as looked_at:
                    found = os.fstat(looked_at) if looked_at is not None else None
            except OSError:
                continue
            if found is not None and not stat.S_ISDIR(found.st_mode):
                yield _File(name, found.st_uid, found.st_blocks * 512, found.st_ctime)


def _beyond(files: list[_File], most: int, total_bytes: int) -> Iterator[_File]:
    """Yield the files that exceed the limits, the first ones counted first; one that alone is too large pushes out no other."""
    used = number = 0
    for file in files:
        if number >= most or used + file.size > total_bytes:
            yield file
        else:
            used, number = used + file.size, number + 1


def _delete(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass  # already removed, or replaced by a directory
