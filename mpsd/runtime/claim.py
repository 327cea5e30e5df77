"""One daemon to a pipe directory: the directories, the lock, the pid file."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from mpsd import processes
from mpsd.errors import AlreadyRunning, UnusablePath

PID_FILE = "nvidia-cuda-mps-control.pid"
_DAEMON = "nvidia-cuda-mps-control"


class Claim:
    """Guards that no second daemon, mpsd's or the vendor's, serves the same pipe directory.  The lock ends with the process."""

    def __init__(self, pipe_directory: Path, log_directory: Path, state_directory: Path, sockets: Iterable[str] = ()) -> None:
        self.pipe_directory = pipe_directory
        self.log_directory = log_directory
        self.state_directory = state_directory
        self._sockets = tuple(sockets)  # names of what will be made in the pipe directory
        self._lock = -1

    def take(self) -> None:
        """Raises UnusablePath, AlreadyRunning; the words are the vendor's where it has some."""
        try:
            self._make_private()
            self._take_lock()
        except OSError as exc:
            raise UnusablePath(f"the state directory {self.state_directory} cannot be used: {exc.strerror}") from None
        self._make_pipe_directory()
        if not os.access(self.pipe_directory, os.W_OK | os.X_OK):
            refusal = f"uid {os.geteuid()} may not write to it"
            raise UnusablePath(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={self.pipe_directory}: {refusal}")
        self._refuse_directories()
        try:
            self.log_directory.mkdir(mode=0o755, exist_ok=True)
        except OSError:
            pass  # the logs say what they could not write; the vendor's daemon goes on without them too
        running = self._running()
        if running is not None:
            raise AlreadyRunning(f"An instance of this daemon is already running\n(pid {running}, not mpsd's: quit it first)")
        self._write_pid()

    def restore(self) -> None:
        """The pipe directory and the pid file, where somebody has removed them.  Raises UnusablePath."""
        self._make_pipe_directory()
        self._write_pid()

    def release(self) -> None:
        """Remove the pid file, if it is ours."""
        path = self.pipe_directory / PID_FILE
        if _read_pid(path) == os.getpid():
            path.unlink(missing_ok=True)

    def _make_pipe_directory(self) -> None:
        _make(self.pipe_directory, f"Cannot access CUDA_MPS_PIPE_DIRECTORY={self.pipe_directory}")

    def _make_private(self) -> None:
        """The state directory can be entered by vendor servers, which run as their users, and listed by nobody else."""
        missing = [parent for parent in (self.state_directory, *self.state_directory.parents) if not parent.exists()]
        for directory in reversed(missing):
            _make(directory, f"the state directory {self.state_directory} cannot be made")
            os.chmod(directory, 0o711)
        if not self.state_directory.is_dir():
            raise UnusablePath(f"the state directory {self.state_directory} cannot be used: it is not a directory")
        for directory in (self.state_directory, self.state_directory.parent):
            if (owner := directory.stat().st_uid) not in (0, os.geteuid()):
                raise UnusablePath(
                    f"the state directory {self.state_directory} cannot be used: {directory} is uid {owner}'s, who could "
                    f"change what is in it; accepted: uid {os.geteuid()}'s or root's (chown, or another state_directory)"
                )
        os.chmod(self.state_directory, 0o711)

    def _refuse_directories(self) -> None:
        """Whatever else is in the way is replaced.  Found later, it would end a daemon that has started a domain already."""
        for path in (self.pipe_directory / name for name in self._sockets):
            if path.is_dir() and not path.is_symlink():
                raise UnusablePath(f"cannot listen at {path}: it is a directory")

    def _take_lock(self) -> None:
        path = self.state_directory / "lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                raise AlreadyRunning("An instance of this daemon is already running") from None
            raise UnusablePath(f"{path} cannot be locked: {exc.strerror}") from None

    def _running(self) -> int | None:
        """A daemon that is not mpsd's: its pid file names a living process of that name, and something listens."""
        pid = _read_pid(self.pipe_directory / PID_FILE)
        if not pid or processes.program_name(pid) != _DAEMON or pid == os.getpid():
            return None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.settimeout(1.0)
                probe.connect(str(self.pipe_directory / "control"))
        except OSError:
            return None
        return pid if processes.environment_variable(pid, "CUDA_MPS_PIPE_DIRECTORY") == str(self.pipe_directory) else None

    def _write_pid(self) -> None:
        """In one step: callers read it at any time."""
        path, new = self.pipe_directory / PID_FILE, self.pipe_directory / f".{PID_FILE}.new"
        try:
            new.unlink(missing_ok=True)
            new.write_text(str(os.getpid()))
            os.chmod(new, 0o644)
            os.replace(new, path)
        except OSError as exc:
            raise UnusablePath(f"the pid file {path} cannot be written: {exc.strerror}") from None


def _make(directory: Path, refusal: str) -> None:
    """One level, as the vendor's does."""
    try:
        directory.mkdir(mode=0o755)
    except FileExistsError:
        if not directory.is_dir():
            raise UnusablePath(f"{refusal}: it is not a directory") from None
    except OSError as exc:
        raise UnusablePath(f"{refusal}: {exc.strerror}") from None


def _read_pid(path: Path) -> int:
    try:
        return int(path.read_text().strip() or 0)
    except (OSError, ValueError):
        return 0
