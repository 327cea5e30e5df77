"""Which process wrote which file of a directory, from the kernel (fanotify(7)).

Unlike a file's name, this cannot be forged, and it distinguishes containers in which every process is root and has pid 1.  The
kernel names the process that closes the last copy of a descriptor, and another process can have opened and written the file:
a descriptor that is sent to a process that only reads a byte is closed there.  So a file has a known writer only if mpsd knows
every process that opened it, and none else closed it.  Since Linux 5.15 an event names its process by a pidfd too: mpsd looks
the process up while no other can have its pid, and does not know one that was reaped before.

From its first event on mpsd watches the file itself, under any name: to write to it, a process has to open it, and truncate(2)
changes its ctime.  Before that, mpsd does not see what a process does with a link to the file elsewhere, so events are read at
once.
Blocks: it reads /proc.
"""

import errno
import os
import signal
import struct
import threading
import time
from pathlib import Path

from msgspec import Struct, field

from mpsd.host import processes
from mpsd.host.descriptors import close_soon
from mpsd.host.file_identity import FileId, identity_of
from mpsd.host.polling import is_readable
from mpsd.model.process import ProcessId
from mpsd.native import ffi, lib

_EVENT = struct.Struct("=IBBHQii")  # its bytes, version, reserved, bytes of this head, mask, descriptor, pid
_PIDFD = struct.Struct("=BBHi")  # type, padding, bytes, pidfd: negative if the process has ended
_VERSION = 3
_OPENED, _REMOVE, _FLUSH = 0x20, 0x2, 0x80  # FAN_OPEN, FAN_MARK_REMOVE, FAN_MARK_FLUSH of linux/fanotify.h
_USES: int = _OPENED | lib.FAN_CLOSE_WRITE
_EVENT_BYTES = _EVENT.size + _PIDFD.size
# The kernel opens the file of each event for mpsd.  Without O_NONBLOCK that waits for a lease of the file's owner
# (F_SETLEASE), 45 s by default.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_EVENTS_AT_ONCE = 64  # each brings a descriptor
_MOST_READS = 1024
_DRAIN_SECONDS = 0.25  # to look up a writer takes up to 0.5 ms, and any user can cause events: 8 s for 16,000 (measured)
_UNSURE_SECONDS = 2.0  # no measured core dump took longer than one to write
_MOST_FILES = 4096
_MOST_USERS = 16  # of one file; readers count
_GENERATIONS = 4  # of a program that lets a child write

Lineage = tuple[ProcessId, ...]  # a process, its parent, and so on; empty: not known, as if it was reaped before mpsd looked


class _Use(Struct):
    """openers, writers: the processes that opened the file, and that closed it after writing.

    changed_ns: the file's ctime when mpsd read of the last such close.
    """

    openers: set[Lineage] = field(default_factory=set)
    writers: set[Lineage] = field(default_factory=set)
    changed_ns: int = -1


class FileWriters:
    """Guards one fanotify group, that no process counts as the sole writer while an event of another may be lost, and bounds.

    Any thread may call its methods.  Raises OSError if the kernel does not permit it: it needs CAP_SYS_ADMIN.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = os.fsencode(directory)
        self._found: dict[FileId, _Use] = {}  # the files that the group watches by themselves
        self._unsure_until = 0.0  # of time.monotonic(): until then, files may have had writers of which no event came
        self._reading = threading.Lock()  # protects all of these
        flags = lib.FAN_CLOEXEC | lib.FAN_NONBLOCK
        self.descriptor: int = lib.fanotify_init(flags | lib.FAN_REPORT_PIDFD, _FILE_FLAGS)  # readable: `drain` has work
        if self.descriptor < 0 and ffi.errno == errno.EINVAL:
            self.descriptor = lib.fanotify_init(flags, _FILE_FLAGS)
        if self.descriptor < 0:
            raise OSError(ffi.errno, f"fanotify_init: {os.strerror(ffi.errno)}")
        if not self._watch_directory():
            error = ffi.errno
            self.close()
            raise OSError(error, f"fanotify_mark {directory}: {os.strerror(error)}")

    def take(self, file: int) -> frozenset[Lineage]:
        """Return all other processes that opened the file or closed it after writing, and forget them.

        None if not all are known, one closed it that has not opened it, nor has a parent of it, or the file has changed since.
        file: a descriptor, after whose opening no process had it open for writing.  The file must still have a name.
        """
        with self._reading:
            self._drain()
            found = os.fstat(file)
            use = self._found.pop(identity_of(found), None)
            if use is None:
                return frozenset()
            lib.fanotify_mark(self.descriptor, _REMOVE, _USES, file, ffi.NULL)  # the kernel may have done so
        opened = {each for lineage in use.openers for each in lineage[:1]}
        if use.changed_ns != found.st_ctime_ns or () in use.openers or not all(map(opened.intersection, use.writers)):
            return frozenset()
        return frozenset(use.openers | use.writers)

    def close(self) -> None:
        """Close the group in a thread: the kernel waits until no processor uses the marks, as with inotify."""
        close_soon((self.descriptor,))

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
                return
            try:
                events = os.read(self.descriptor, _EVENT_BYTES * _EVENTS_AT_ONCE)
            except BlockingIOError:
                self._forget()  # the owner of some file has a lease on it: its event is lost, and no process has it open
            except OSError:
                self._lose()  # the file of one event could not be opened
            else:
                self._read(events)
                if time.monotonic() > end:
                    self._lose()
        self._lose()

    def _read(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            size, version, _, head_bytes, mask, descriptor, pid = _EVENT.unpack_from(events, at)
            pidfd = _pidfd(events[at + head_bytes : at + size])
            at += max(size, _EVENT.size)
            if descriptor >= 0:
                self._note(descriptor, mask, pid if version == _VERSION else 0, pidfd)
                os.close(descriptor)
            else:
                self._lose()  # the queue was full (FAN_Q_OVERFLOW)
            if pidfd is not None and pidfd >= 0:
                os.close(pidfd)

    def _lose(self) -> None:
        """Forget all writers, and note none for a while: a lost event may be that of a second writer of any file."""
        self._forget()
        self._unsure_until = time.monotonic() + _UNSURE_SECONDS

    def _forget(self) -> None:
        """Forget all files, and watch the directory alone.  If the kernel permits not even that, no file has a known writer."""
        self._found.clear()
        lib.fanotify_mark(self.descriptor, _FLUSH, 0, lib.AT_FDCWD, ffi.NULL)
        self._watch_directory()

    def _watch_directory(self) -> bool:
        mask = _USES | lib.FAN_EVENT_ON_CHILD
        return bool(lib.fanotify_mark(self.descriptor, lib.FAN_MARK_ADD, mask, lib.AT_FDCWD, self._directory) == 0)

    def _note(self, descriptor: int, mask: int, pid: int, pidfd: int | None) -> None:
        found = os.fstat(descriptor)
        if not found.st_nlink or time.monotonic() < self._unsure_until:  # without a name its inode may soon be another file's
            return
        if lib.fanotify_mark(self.descriptor, lib.FAN_MARK_ADD, _USES, descriptor, ffi.NULL) < 0:
            self._lose()
            return
        use, lineage = self._found.setdefault(identity_of(found), _Use()), _lineage_of(pid, pidfd)
        if mask & _OPENED and pid != os.getpid():
            _add(use.openers, lineage)
        if mask & lib.FAN_CLOSE_WRITE:
            _add(use.writers, lineage)
            use.changed_ns = found.st_ctime_ns
        if len(self._found) > _MOST_FILES:
            self._lose()


def _add(users: set[Lineage], lineage: Lineage) -> None:
    users.add(lineage if len(users) < _MOST_USERS else ())


def _pidfd(more: bytes) -> int | None:
    """Return the pidfd from the bytes after an event's head; negative if its process has ended, None if they lack one."""
    if len(more) < _PIDFD.size:
        return None
    kind, _, _, pidfd = _PIDFD.unpack_from(more)
    return int(pidfd) if kind == lib.FAN_EVENT_INFO_TYPE_PIDFD else None


def _lineage_of(pid: int, pidfd: int | None) -> Lineage:
    """Return the lineage of an event's process; empty if it is not certain that the pid was its own meanwhile.

    pid: 0: a process that mpsd does not see.  pidfd: None: the kernel gives none.
    """
    found = _lineage(pid)
    if pidfd is None:
        return found
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
