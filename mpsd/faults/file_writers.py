"""Which process wrote which file of a directory, from the kernel (fanotify(7), through libc: Python has no binding).

Unlike a file's name, this cannot be forged, and it distinguishes containers in which every process is root and has pid 1.
"""

import ctypes
import os
import struct
from collections import OrderedDict
from pathlib import Path

from mpsd.descriptors import close_soon

_CLOSE_ON_EXEC, _NON_BLOCKING = 0x1, 0x2  # FAN_CLOEXEC, FAN_NONBLOCK; FAN_CLASS_NOTIF is 0
_ADD, _CLOSE_WRITE, _OF_CHILDREN = 0x1, 0x8, 0x08000000
_CURRENT_DIRECTORY = -100
_EVENT = struct.Struct("=IBBHQii")  # its bytes, version, reserved, bytes of this head, mask, descriptor, pid
_VERSION = 3
_EVENTS_AT_ONCE = 64  # each brings a descriptor
_MOST_READS = 1024
_MOST_FILES = 1024
_MOST_WRITERS = 4  # of one file; with two it already has no sole writer
_GENERATIONS = 4  # of a program that lets a child write
_libc = ctypes.CDLL(None, use_errno=True)

FileId = tuple[int, int]  # device and inode
Lineage = tuple[int, ...]  # a pid, its parent's, and so on, 0 for init; the pid alone if the process had ended


class FileWriters:
    """Guards one fanotify group, and that the remembered files are bounded.

    Raises OSError if the kernel does not permit it: it needs CAP_SYS_ADMIN.
    """

    def __init__(self, directory: Path) -> None:
        self._found: OrderedDict[FileId, set[Lineage]] = OrderedDict()
        self._descriptor = _libc.fanotify_init(_CLOSE_ON_EXEC | _NON_BLOCKING, os.O_RDONLY | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), f"fanotify_init: {os.strerror(ctypes.get_errno())}")
        mask = ctypes.c_uint64(_CLOSE_WRITE | _OF_CHILDREN)
        if _libc.fanotify_mark(self._descriptor, _ADD, mask, _CURRENT_DIRECTORY, os.fsencode(directory)) < 0:
            error = ctypes.get_errno()
            self.close()
            raise OSError(error, f"fanotify_mark {directory}: {os.strerror(error)}")

    def take(self, file: FileId) -> frozenset[Lineage]:
        """Return the processes that closed the file after writing, and forget them.  Never blocks."""
        self.drain()
        return frozenset(self._found.pop(file, ()))

    def close(self) -> None:
        """Close the group in a thread: the kernel waits until no processor uses the marks, as with inotify."""
        close_soon((self._descriptor,))

    def drain(self) -> None:
        """Read the queued events; call it regularly: the kernel keeps 16,384 events and drops the rest.  Never blocks."""
        for _ in range(_MOST_READS):
            try:
                events = os.read(self._descriptor, _EVENT.size * _EVENTS_AT_ONCE)
            except BlockingIOError:
                return
            except OSError:
                continue  # the file of one event could not be opened; that event is lost
            at = 0
            while at < len(events):
                size, version, _, _, _, descriptor, pid = _EVENT.unpack_from(events, at)
                at += max(size, _EVENT.size)
                if descriptor >= 0:
                    self._note(descriptor, pid if version == _VERSION else 0)

    def _note(self, descriptor: int, pid: int) -> None:
        found = os.fstat(descriptor)
        os.close(descriptor)
        if found.st_nlink:  # otherwise its inode may soon be another file's
            lineages = self._found.setdefault((found.st_dev, found.st_ino), set())
            if len(lineages) < _MOST_WRITERS:
                lineages.add(_lineage(pid))
            if len(self._found) > _MOST_FILES:
                self._found.popitem(last=False)


def _lineage(pid: int) -> Lineage:
    found = [pid]
    while len(found) < _GENERATIONS and found[-1] > 0 and (parent := _parent(found[-1])) is not None:
        found.append(parent if parent != 1 else 0)  # an orphan's parent is init, and no client
    return tuple(found)


def _parent(pid: int) -> int | None:
    """Return the parent's pid; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    return int(text[text.rfind(b")") + 2 :].split()[1])
