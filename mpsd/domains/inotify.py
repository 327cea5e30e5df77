"""Waiting for files to grow without polling (inotify(7), through libc: the standard library has no binding)."""

import ctypes
import os
from pathlib import Path

import trio

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80
_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """Guards one inotify descriptor; readable whenever something in the directory grew or appeared."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1: raise fs.inotify.max_user_instances")
        mask = _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO
        if _libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask) < 0:
            error = ctypes.get_errno()
            os.close(self._descriptor)
            raise OSError(error, f"inotify_add_watch {directory}: {os.strerror(error)}")

    async def changed(self) -> None:
        """Returns after at least one change since the last call; for ever if nothing changes."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                os.read(self._descriptor, 65536)
            except BlockingIOError:
                continue
            return

    def close(self) -> None:
        os.close(self._descriptor)
