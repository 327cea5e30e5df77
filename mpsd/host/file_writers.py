"""Which process wrote which file of a directory, from the kernel (fanotify(7)).

Unlike a file's name, this cannot be forged, and it distinguishes containers in which every process is root and has pid 1.  The
kernel names the process that closes the last copy of a descriptor, and another process can have opened and written the file:
a descriptor that is sent to a process that only reads a byte is closed there.  So a writer must have opened the file, too.
Since Linux 5.15 an event names its process by a pidfd too, so that a later process with the same pid is not taken for it.
Blocks: it reads /proc.
"""

import errno
import os
import struct
import time
from collections import OrderedDict
from pathlib import Path

from msgspec import Struct, field

from mpsd.host import processes
from mpsd.host.descriptors import close_soon
from mpsd.host.file_identity import FileId, identity_of
from mpsd.host.polling import is_readable
from mpsd.native import ffi, lib

_EVENT = struct.Struct("=IBBHQii")  # its bytes, version, reserved, bytes of this head, mask, descriptor, pid
_PIDFD = struct.Struct("=BBHi")  # type, padding, bytes, pidfd: negative if the process has ended
_VERSION = 3
_OPENED = 0x20  # FAN_OPEN of linux/fanotify.h
_EVENT_BYTES = _EVENT.size + _PIDFD.size
# The kernel opens the file of each event for mpsd.  Without O_NONBLOCK that waits for a lease of the file's owner
# (F_SETLEASE), 45 s by default.
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_EVENTS_AT_ONCE = 64  # each brings a descriptor
_MOST_READS = 1024
_DRAIN_SECONDS = 0.25  # to look up a writer takes up to 0.5 ms, and any user can cause events: 8 s for 16,000 (measured)
_UNSURE_SECONDS = 2.0  # no measured core dump took longer than one to write
_MOST_FILES = 4096
_MOST_WRITERS = 4  # of one file; with two it already has no sole writer
_MOST_OPENERS = 64  # of one file; its readers, too
_GENERATIONS = 4  # of a program that lets a child write

Lineage = tuple[int, ...]  # a pid, its parent's, and so on, 0 for init; the pid alone if the process had ended


class _Use(Struct):
    """openers: pids.  writers: processes that closed the file after writing."""

    openers: set[int] = field(default_factory=set)
    writers: set[Lineage] = field(default_factory=set)


class FileWriters:
    """Guards one fanotify group, that no process counts as the sole writer while an event of another may be lost, and bounds.

    Raises OSError if the kernel does not permit it: it needs CAP_SYS_ADMIN.
    """

    def __init__(self, directory: Path) -> None:
        self._found: OrderedDict[FileId, _Use] = OrderedDict()
        self._unsure_until = 0.0  # of time.monotonic(): until then, files may have had writers of which no event came
        flags = lib.FAN_CLOEXEC | lib.FAN_NONBLOCK
        self._descriptor = lib.fanotify_init(flags | lib.FAN_REPORT_PIDFD, _FILE_FLAGS)
        if self._descriptor < 0 and ffi.errno == errno.EINVAL:
            self._descriptor = lib.fanotify_init(flags, _FILE_FLAGS)
        if self._descriptor < 0:
            raise OSError(ffi.errno, f"fanotify_init: {os.strerror(ffi.errno)}")
        mask = _OPENED | lib.FAN_CLOSE_WRITE | lib.FAN_EVENT_ON_CHILD
        if lib.fanotify_mark(self._descriptor, lib.FAN_MARK_ADD, mask, lib.AT_FDCWD, os.fsencode(directory)) < 0:
            error = ffi.errno
            self.close()
            raise OSError(error, f"fanotify_mark {directory}: {os.strerror(error)}")

    def take(self, file: FileId) -> frozenset[Lineage]:
        """Return the processes that closed the file after writing, and forget them; none if that is not known for certain.

        Each, or a parent of it, has opened the file.  The file must still have a name.
        """
        self.drain()
        use = self._found.pop(file, _Use())
        return frozenset(use.writers if all(use.openers.intersection(each) for each in use.writers) else ())

    def close(self) -> None:
        """Close the group in a thread: the kernel waits until no processor uses the marks, as with inotify."""
        close_soon((self._descriptor,))

    def drain(self) -> None:
        """Read the queued events; call it regularly: the kernel keeps 16,384 events and drops the rest.

        Takes _DRAIN_SECONDS, and reads what is left then without a look at it.
        """
        end = time.monotonic() + _DRAIN_SECONDS
        for _ in range(_MOST_READS):
            if not is_readable(self._descriptor):
                return
            try:
                events = os.read(self._descriptor, _EVENT_BYTES * _EVENTS_AT_ONCE)
            except BlockingIOError:
                self._found.clear()  # the owner of some file has a lease on it: its event is lost, and no process has it open
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
            else:
                self._lose()  # the queue was full (FAN_Q_OVERFLOW)
            if pidfd is not None and pidfd >= 0:
                os.close(pidfd)

    def _lose(self) -> None:
        """Forget all writers, and note none for a while: a lost event may be that of a second writer of any file."""
        self._found.clear()
        self._unsure_until = time.monotonic() + _UNSURE_SECONDS

    def _note(self, descriptor: int, mask: int, pid: int, pidfd: int | None) -> None:
        found = os.fstat(descriptor)
        os.close(descriptor)
        if not found.st_nlink or time.monotonic() < self._unsure_until:  # without a name its inode may soon be another file's
            return
        use = self._found.setdefault(identity_of(found), _Use())
        if mask & _OPENED and pid and len(use.openers) < _MOST_OPENERS:  # 0: a process that mpsd does not see
            use.openers.add(pid)
        if mask & lib.FAN_CLOSE_WRITE and len(use.writers) < _MOST_WRITERS:
            use.writers.add(_lineage_of(pid, pidfd))
        if len(self._found) > _MOST_FILES:
            self._lose()


def _pidfd(more: bytes) -> int | None:
    """Return the pidfd from the bytes after an event's head; negative if its process has ended, None if they lack one."""
    if len(more) < _PIDFD.size:
        return None
    kind, _, _, pidfd = _PIDFD.unpack_from(more)
    return int(pidfd) if kind == lib.FAN_EVENT_INFO_TYPE_PIDFD else None


def _lineage_of(pid: int, pidfd: int | None) -> Lineage:
    """Return the lineage of the process itself; its pid alone if it has ended, whether or not another process has it now."""
    if pidfd is None:
        return _lineage(pid)
    found = _lineage(pid) if pidfd >= 0 else (pid,)
    has_ended = pidfd < 0 or is_readable(pidfd)
    return (pid,) if has_ended else found


def _lineage(pid: int) -> Lineage:
    found = [pid]
    while len(found) < _GENERATIONS and found[-1] > 0 and (parent := processes.parent(found[-1])) is not None:
        found.append(parent if parent != 1 else 0)  # an orphan's parent is init, and no client
    return tuple(found)
