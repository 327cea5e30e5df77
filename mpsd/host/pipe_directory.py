"""The public pipe directory, held open: mpsd works in the directory that it judged, wherever its path leads later."""

import fcntl
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from mpsd.errors import UnusablePath
from mpsd.host.listeners import listen_in
from mpsd.host.trusted_directories import PUBLIC_MODE, Opened, leads_to, open_directory

log = structlog.get_logger()
_READ_BYTES = 32


class PipeDirectory:
    """Guards that mpsd creates, changes and removes files only in the judged directory, each by its descriptor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.missing: Sequence[str] = ()  # of the names that clients need, as app/public_paths.py last found
        self._descriptor = -1

    def open(self) -> None:
        """Open the directory; create one level, as the vendor's daemon does.  Raises UnusablePath."""
        try:
            opened = open_directory(self.path, make_mode=PUBLIC_MODE, is_ours_alone=True)
        except UnusablePath as exc:
            raise UnusablePath(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={self.path}: {exc}") from None
        tell_tightened(self.path, opened)
        with suppress(OSError):  # systemd-tmpfiles leaves a locked directory alone, tmpfiles.d(5)
            fcntl.flock(opened.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = opened.descriptor

    def is_current(self) -> bool:
        """Return whether the path still leads to this directory, and only mpsd's user and root can change it."""
        return leads_to(self.path, self._descriptor)

    def is_writable(self) -> bool:
        return os.access(".", os.W_OK | os.X_OK, dir_fd=self._descriptor)

    def has(self, name: str) -> bool:
        return self._mode_of(name) != 0

    def is_directory(self, name: str) -> bool:
        return stat.S_ISDIR(self._mode_of(name))

    def inode_of(self, name: str) -> int:
        """Return the inode number of the file, 0 without one: a listener is reachable only while its number is the same."""
        found = self._look(name)
        return found.st_ino if found else 0

    def version_of(self, name: str) -> str:
        """Return what no file has that is written later, or takes the place of this one; "" without a file."""
        found = self._look(name)
        return f"{found.st_ino} {found.st_mtime_ns}" if found else ""

    def listen(self, name: str, mode: int) -> socket.socket:
        """Listen on a socket of this name.  Raises UnusablePath."""
        return listen_in(self._descriptor, self.path / name, mode)

    def link(self, name: str, target: str) -> None:
        """Point a symbolic link to a new target, in one step.  Raises OSError."""
        new = f".{name}.new"
        self.remove(new)
        os.symlink(target, new, dir_fd=self._descriptor)
        os.replace(new, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def link_target(self, name: str) -> str:
        """Return the target of a symbolic link; "" for anything else."""
        try:
            return os.readlink(name, dir_fd=self._descriptor)
        except OSError:
            return ""

    def write(self, name: str, text: str, mode: int) -> None:
        """Write a file in one step: other processes read it at any time.  Raises OSError."""
        new = f".{name}.new"
        self.remove(new)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(new, flags, 0o600, dir_fd=self._descriptor)
        with os.fdopen(file, "w") as stream:
            stream.write(text)
            os.fchmod(file, mode)
        os.replace(new, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def read(self, name: str) -> str:
        """Return the start of a regular file; "" if it cannot be read."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._descriptor)
        except OSError:
            return ""
        try:
            return os.read(file, _READ_BYTES).decode(errors="replace")
        except OSError:
            return ""  # a directory
        finally:
            os.close(file)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists.  Raises OSError if it cannot be removed."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove_last(self, *names: str) -> None:
        """Remove files when mpsd ends.  One that stays, as on a disk that became read-only, names a daemon that has ended."""
        for name in names:
            with suppress(OSError):
                self.remove(name)

    def _mode_of(self, name: str) -> int:
        found = self._look(name)
        return found.st_mode if found else 0

    def _look(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except OSError:
            return None


def tell_tightened(path: Path, opened: Opened) -> None:
    """Log that mpsd tightened a directory: callers' scripts create it with mode 0777, which no client and no tool needs."""
    if opened.was_mode is not None:
        now = stat.S_IMODE(os.fstat(opened.descriptor).st_mode)
        modes = {"path": str(path), "was": f"{opened.was_mode:04o}", "now": f"{now:04o}"}
        if opened.was_mode & ~now & (stat.S_IWGRP | stat.S_IWOTH):
            log.warning("directory.tightened", **modes, why="other users could have replaced what mpsd makes there")
        else:  # as mkdir makes it
            log.info("directory.tightened", **modes, why="a user who lists it could have kept mpsd waiting")
