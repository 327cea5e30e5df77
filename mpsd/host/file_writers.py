"""Which process wrote which file of a directory, from the kernel (fanotify(7)).

Unlike a file's name, this cannot be forged, and it distinguishes containers in which every process is root and has pid 1.  The
kernel names the process that closes the last copy of a descriptor, and another process can have opened and written the file:
a descriptor that is sent to a process that only reads a byte is closed there.  So a file has a known writer only if mpsd knows
every process that opened it, and none else closed it.  For that it has to know the file from its beginning: a file that was
moved in can be open for writing already, and one that was linked counts its linker as an opener.  An event names its process
by a pidfd too: mpsd looks the process up while no other can have its pid, and does not know one that was reaped before.

An event names its file by a handle.  If the kernel opened the file instead, a process could prevent that by a lease, and
read(2) says nothing of such an event after the first.

From its first event on mpsd watches the file itself, under any name: to write to it, a process has to open it, and truncate(2)
changes its ctime.  Before that, mpsd does not see which process opens a link to the file elsewhere, so events are read at once.
Blocks: it reads /proc.
"""

import os
import signal
import struct
import threading
import time
from pathlib import Path

from msgspec import Struct, field

from mpsd.host import processes
from mpsd.host.descriptors import close_soon
from mpsd.host.file_handles import FileHandle, handle_at, handle_of
from mpsd.host.polling import is_readable
from mpsd.model.process import ProcessId
from mpsd.native import ffi, lib

_EVENT = struct.Struct("=IBBHQii")  # its bytes, version, reserved, bytes of this head, mask, descriptor, pid
_RECORD = struct.Struct("=BBH")  # type, padding, bytes with this head: the facts about an event, after its head
_PIDFD = struct.Struct("=i")  # negative if the process has ended
_HANDLE_AT = _RECORD.size + 8  # after the number of the file system
# Of linux/fanotify.h; FAN_REPORT_TARGET_FID is of Linux 5.17.
_OPENED, _MADE, _OVERFLOW = 0x20, 0x100, 0x4000  # FAN_OPEN, FAN_CREATE (also by link(2)), FAN_Q_OVERFLOW
_REMOVE, _FLUSH = 0x2, 0x80  # FAN_MARK_REMOVE, FAN_MARK_FLUSH
_REPORT_HANDLES = 0x1E00  # FAN_REPORT_FID, FAN_REPORT_DIR_FID, FAN_REPORT_NAME, FAN_REPORT_TARGET_FID
_USES: int = _OPENED | lib.FAN_CLOSE_WRITE
_READ_BYTES = 4096  # 40 events with short names; each brings a descriptor
_MOST_READS = 1024
_DRAIN_SECONDS = 0.25  # to look up a writer takes up to 0.5 ms, and any user can cause events: 8 s for 16,000 (measured)
_MOST_FILES = 4096
_MOST_USERS = 16  # of one file; readers count
_GENERATIONS = 4  # of a program that lets a child write

Lineage = tuple[ProcessId, ...]  # a process, its parent, and so on; empty: not known, as if it was reaped before mpsd looked


class _Use(Struct):
    """is_made: mpsd read of the process that made the file, or linked it into the directory.

    openers, writers: the processes that made or opened the file, and that closed it after writing.
    changed_ns: the file's ctime when mpsd read of the last such close.
    """

    is_made: bool = False
    openers: set[Lineage] = field(default_factory=set)
    writers: set[Lineage] = field(default_factory=set)
    changed_ns: int = -1


class FileWriters:
    """Guards one fanotify group, that no process counts as the sole writer if an event of another may be lost, and bounds.

    Any thread may call its methods.  Raises OSError if the kernel does not permit it, which needs CAP_SYS_ADMIN, or gives no
    handles, as before Linux 5.17 and on some file systems.
    """

    def __init__(self, directory: Path) -> None:
        self._found: dict[FileHandle, _Use] = {}  # the files that the group watches by themselves
        self._is_behind = False  # an event was lost, and what follows in the queue may have been queued before
        self._reading = threading.Lock()  # protects all of these
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = lib.FAN_CLOEXEC | lib.FAN_NONBLOCK | lib.FAN_REPORT_PIDFD | _REPORT_HANDLES
        self.descriptor: int = lib.fanotify_init(flags, os.O_RDONLY)  # readable: `drain` has work
        try:
            if self.descriptor < 0:
                raise OSError(ffi.errno, f"fanotify_init: {os.strerror(ffi.errno)}")
            handle_of(self._directory)
            if not self._watch_directory():
                raise OSError(ffi.errno, f"fanotify_mark {directory}: {os.strerror(ffi.errno)}")
        except OSError:
            self.close()
            raise

    def take(self, file: int) -> frozenset[Lineage]:
        """Return all other processes that made or opened the file or closed it after writing, and forget them.

        None if not all are known, one closed it that neither has opened it nor has a parent that did, or it has changed.
        file: a descriptor, after whose opening no process had it open for writing.  The file must still have a name.
        """
        with self._reading:
            self._drain()
            use = self._found.pop(handle_of(file), None)
            if use is None or lib.fanotify_mark(self.descriptor, _REMOVE, _USES, file, ffi.NULL) < 0:
                return frozenset()
        opened = {each for lineage in use.openers for each in lineage[:1]}
        is_known = use.is_made and () not in use.openers and all(map(opened.intersection, use.writers))
        if not is_known or use.changed_ns != os.fstat(file).st_ctime_ns:
            return frozenset()
        return frozenset(use.openers | use.writers)

    def close(self) -> None:
        """Close the group in a thread: the kernel waits until no processor uses the marks, as with inotify."""
        close_soon([each for each in (self.descriptor, self._directory) if each >= 0])

    def drain(self) -> None:
        """Read the queued events; call it at once when `descriptor` is readable: the kernel keeps 16,384 and drops the rest.

        Takes _DRAIN_SECONDS, and reads what is left then without a look at it.
        """
        with self._reading:
            self._drain()

    def _drain(self) -> None:
        end = time.monotonic() + _DRAIN_SECONDS
        for _ in range(_MOST_READS):
            if not is_readable(self.descriptor):
                self._is_behind = False
                return
            try:
                self._read(os.read(self.descriptor, _READ_BYTES), end)
            except OSError:
                self._lose()
        self._lose()

    def _read(self, events: bytes, end: float) -> None:
        """Note these events.  After `end`, of time.monotonic(), look up no writer: the event loop waits for the same reader."""
        at = 0
        while at < len(events):
            size, _, _, head_bytes, mask, _, pid = _EVENT.unpack_from(events, at)
            handle, name, pidfd = _facts(events[at + head_bytes : at + size])
            at += max(size, _EVENT.size)
            if mask & _OVERFLOW or not handle:
                self._lose()
            elif not self._is_behind:
                self._note(handle, name, mask, pid, pidfd)
                if time.monotonic() > end:
                    self._lose()
            if pidfd >= 0:
                os.close(pidfd)

    def _lose(self) -> None:
        """Forget all files, and note none until the queue is empty: a lost event may be that of a second writer of any file.

        Then mpsd watches the directory alone.  The writer of an earlier file is not known, since mpsd did not see it made.
        If the kernel permits not even that watch, no file has one.
        """
        if self._is_behind:
            return
        self._is_behind = True
        self._found.clear()
        lib.fanotify_mark(self.descriptor, _FLUSH, 0, lib.AT_FDCWD, ffi.NULL)
        self._watch_directory()

    def _watch_directory(self) -> bool:
        mask = _USES | _MADE | lib.FAN_EVENT_ON_CHILD
        return bool(lib.fanotify_mark(self.descriptor, lib.FAN_MARK_ADD, mask, self._directory, ffi.NULL) == 0)

    def _note(self, handle: FileHandle, name: bytes, mask: int, pid: int, pidfd: int) -> None:
        """Note an event of a file, after a look at the file: the sooner mpsd watches it, the less can happen unseen.

        If a file has another name by the time mpsd reads of its making, its writer is not known.
        """
        changed_ns = self._look(handle, name) if handle not in self._found or mask & lib.FAN_CLOSE_WRITE else -1
        if (use := self._found.get(handle)) is None:
            return
        lineage = _lineage_of(pid, pidfd)
        if mask & _MADE:
            use.is_made = True
        if mask & _MADE or (mask & _OPENED and pid != os.getpid()):
            _add(use.openers, lineage)
        if mask & lib.FAN_CLOSE_WRITE:
            _add(use.writers, lineage)
            use.changed_ns = changed_ns

    def _look(self, handle: FileHandle, name: bytes) -> int:
        """Watch the file by itself from now on, and return its ctime in ns; -1 if the directory does not have it by this name.

        It opens the path alone: no lease delays that, and the kernel reports no event of it.
        """
        try:
            path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
        except FileNotFoundError:
            return -1
        except OSError:  # as without a free descriptor
            self._lose()
            return -1
        try:
            if handle_of(path) != handle:
                return -1
            if handle not in self._found:
                place = f"/proc/self/fd/{path}".encode()
                if lib.fanotify_mark(self.descriptor, lib.FAN_MARK_ADD, _USES, lib.AT_FDCWD, place) < 0:
                    raise OSError(ffi.errno, os.strerror(ffi.errno))
                self._found[handle] = _Use()
                if len(self._found) > _MOST_FILES:
                    self._lose()
            return os.fstat(path).st_ctime_ns
        except OSError:
            self._lose()
            return -1
        finally:
            os.close(path)


def _add(users: set[Lineage], lineage: Lineage) -> None:
    users.add(lineage if len(users) < _MOST_USERS else ())


def _facts(records: bytes) -> tuple[FileHandle, bytes, int]:
    """Return the file, its name and the pidfd from the bytes after an event's head; empty or negative if they lack it."""
    handle, name, pidfd, at = b"", b"", -1, 0
    while at + _RECORD.size <= len(records):
        kind, _, size = _RECORD.unpack_from(records, at)
        if kind == lib.FAN_EVENT_INFO_TYPE_FID:
            handle = handle_at(records, at + _HANDLE_AT)
        elif kind == lib.FAN_EVENT_INFO_TYPE_DFID_NAME:
            directory = handle_at(records, at + _HANDLE_AT)
            name = records[at + _HANDLE_AT + len(directory) : at + size].partition(b"\0")[0]
        elif kind == lib.FAN_EVENT_INFO_TYPE_PIDFD:
            [pidfd] = _PIDFD.unpack_from(records, at + _RECORD.size)
        at += max(size, _RECORD.size)
    return handle, name, pidfd


def _lineage_of(pid: int, pidfd: int) -> Lineage:
    """Return the lineage of an event's process; empty if another process may have had the pid since.

    pid: 0: a process that mpsd does not see.
    """
    found = _lineage(pid)
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except PermissionError:
        return found
    except OSError:  # it was reaped, or the kernel gave no pidfd since it had been
        return ()
    return found


def _lineage(pid: int) -> Lineage:
    found: list[ProcessId] = []
    while len(found) < _GENERATIONS and pid > 0 and (process := processes.find(pid, even_ending=True)):
        if found and processes.parent(found[-1].pid) != pid:
            break  # the parent ended, so that its pid may be another's
        found.append(process)
        pid = processes.parent(pid) or 0
        if pid == 1:
            break  # an orphan's parent is init, and no client
    return tuple(found)
