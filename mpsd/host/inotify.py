"""Wait for files to grow or to be complete, without polling (inotify(7))."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import trio

from mpsd.host.descriptors import close_soon
from mpsd.native import ffi, lib

GROWN: int = lib.IN_MODIFY | lib.IN_CREATE | lib.IN_MOVED_TO
COMPLETE: int = lib.IN_CLOSE_WRITE | lib.IN_MOVED_TO  # the writer has closed it
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name that follows


class DirectoryWatch:
    """Guards one inotify descriptor; readable whenever a file in the directory grew or appeared, or is complete."""

    def __init__(self, directory: Path, mask: int = GROWN) -> None:
        self._descriptor = lib.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ffi.errno, "inotify_init1: raise fs.inotify.max_user_instances")
        if lib.inotify_add_watch(self._descriptor, os.fsencode(directory), mask) < 0:
            error = ffi.errno
            self.close()
            raise OSError(error, f"inotify_add_watch {directory}: {os.strerror(error)}")

    async def changed(self) -> None:
        """Wait until at least one change since the last call; for ever if nothing changes."""
        await self.names()

    async def names(self) -> frozenset[str]:
        """Wait like `changed`; return the names of the changed files.

        Names are missing if the kernel's queue was full: a caller that needs all of them has to list the directory now and
        then.
        """
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                return frozenset(_names(os.read(self._descriptor, 65536)))
            except BlockingIOError:
                continue

    def close(self) -> None:
        """Close in the background: the kernel waits until no processor uses the watches, 20 to 60 ms (measured)."""
        close_soon((self._descriptor,))


def _names(events: bytes) -> Iterator[str]:
    at = 0
    while at < len(events):
        *_, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size + length
        if length:
            yield os.fsdecode(events[at - length : at].rstrip(b"\0"))
