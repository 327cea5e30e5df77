"""The claim of one daemon on a pipe directory: the directories, the lock, the pid file."""

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from mpsd.config.options import Config
from mpsd.errors import AlreadyRunning, UnusablePath
from mpsd.host import processes
from mpsd.host.bare_threads import BareThreads, begin_bare_threads
from mpsd.host.descriptors import close_all
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.pipe_directory import PipeDirectory, tell_tightened
from mpsd.host.trusted_directories import PUBLIC_MODE, NotTrusted, open_directory

PID_FILE = "nvidia-cuda-mps-control.pid"
_DAEMON = "nvidia-cuda-mps-control"
_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOCK = "lock"  # the file in the state directory; it names the pid file that mpsd wrote last
_HOLD_SECONDS = 5.0  # until a thread holds the lock; it takes a millisecond
_PID_MODE = 0o600  # a user who may read it can hold its lock by a direct read, and mpsd would wait as it replaces or removes it
_STATE_MODE = 0o711


class InstanceLock:
    """Guards that no second daemon, mpsd's or the vendor's, serves the same pipe directory.

    The lock ends with the process: a thread holds it that has nothing else open.  In mpsd's own table it would stay, after
    SIGKILL too, while another thread waits for a client's file server, and no mpsd could be started until that server ends.
    """

    def __init__(self, pipe_directory: Path, log_directory: Path, state_directory: Path, sockets: Iterable[str] = ()) -> None:
        self.pipe = PipeDirectory(pipe_directory)
        self.log_directory = log_directory
        self.state_directory = state_directory
        self._sockets = tuple(sockets)  # names of the sockets that mpsd will create in the pipe directory
        self._release = threading.Event()  # of the lock that is held now
        self._bare: BareThreads | None = None

    @property
    def pipe_directory(self) -> Path:
        return self.pipe.path

    def take(self) -> None:
        """Take the claim.  Raises UnusablePath, AlreadyRunning, with the vendor's texts if it has some."""
        self._open_log_directory()  # first: warnings about the others go to its log
        try:
            self._make_private()
            self._take_lock()
        except OSError as exc:
            raise UnusablePath(f"the state directory {self.state_directory} cannot be used: {exc.strerror}") from None
        self.pipe.open()
        if not self.pipe.is_writable():
            refusal = f"uid {os.geteuid()} may not write to it"
            raise UnusablePath(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={self.pipe_directory}: {refusal}")
        self._refuse_directories()
        running = self._running()
        if running is not None:
            raise AlreadyRunning(f"An instance of this daemon is already running\n(pid {running}, not mpsd's: quit it first)")
        self._write_pid()

    def restore(self) -> None:
        """Restore the pipe directory and the pid file after another process removed or replaced them.  Raises UnusablePath."""
        self.pipe.open()
        self._write_pid()

    def remake_state(self) -> None:
        """Make and lock the state directory again, after another process removed it.  Raises UnusablePath, AlreadyRunning."""
        try:
            self._make_private()
            self._take_lock()
        except OSError as exc:
            raise UnusablePath(f"the state directory {self.state_directory} cannot be made: {exc.strerror}") from None
        if self._read_pid() == os.getpid():
            self._note_pid_file()

    def release(self) -> None:
        """Remove the pid file if it is this process's."""
        if self._read_pid() == os.getpid():
            self.pipe.remove_last(PID_FILE)

    def _open_log_directory(self) -> None:
        """Create and tighten the log directory; an operator's own, which others may list, may have a second purpose.

        Raises UnusablePath if another user controls it: that user could read and forge the logs.
        """
        try:
            is_default = str(self.log_directory) == Config().log_directory
            opened = open_directory(
                self.log_directory, make_mode=PUBLIC_MODE, may_be_shared=True, is_ours_alone=is_default
            )
        except NotTrusted as exc:
            raise UnusablePath(f"the log directory {self.log_directory} cannot be used: {exc}") from None
        except UnusablePath:
            return  # the logs report what they could not write; the vendor's daemon continues without them too
        tell_tightened(self.log_directory, opened)
        os.close(opened.descriptor)

    def _make_private(self) -> None:
        """Create the state directory: vendor servers, which run as their users, may enter it; only mpsd's user may list it."""
        missing = [parent for parent in self.state_directory.parents if not parent.exists()]
        for directory in (*reversed(missing), self.state_directory):
            try:
                opened = open_directory(directory, make_mode=_STATE_MODE)
            except UnusablePath as exc:
                raise UnusablePath(f"the state directory {self.state_directory} cannot be used: {exc}") from None
            try:
                tell_tightened(directory, opened)
                os.fchmod(opened.descriptor, _STATE_MODE)
            finally:
                os.close(opened.descriptor)

    def _refuse_directories(self) -> None:
        """Refuse a directory in the place of a socket; any other file is replaced.  Raises UnusablePath.

        Without this check it would end a daemon that has already started a domain.
        """
        for name in self._sockets:
            if self.pipe.is_directory(name):
                raise UnusablePath(f"cannot listen at {self.pipe_directory / name}: it is a directory")

    def _take_lock(self) -> None:
        path = self.state_directory / LOCK
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(lock)
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                raise AlreadyRunning("An instance of this daemon is already running") from None
            raise UnusablePath(f"{path} cannot be locked: {exc.strerror}") from None
        self._release.set()  # the lock of a directory that was removed
        self._release = threading.Event()
        if self._hold_apart(lock):
            os.close(lock)

    def _hold_apart(self, lock: int) -> bool:
        """Let a thread hold a copy; return whether it does.  Otherwise the lock stays open in mpsd's own table."""
        is_held = threading.Event()
        self._bare = self._bare or begin_bare_threads()
        if self._bare is not None:
            with suppress(OSError):
                self._bare.start([lock], partial(_hold, release=self._release, is_held=is_held))
                return is_held.wait(_HOLD_SECONDS)
        return False

    def _running(self) -> int | None:
        """Return the pid of a running daemon that is not mpsd's; None if none runs.

        Its pid file must name a living process of root's or mpsd's user with the daemon's name, and a process must listen: the
        keeper of a killed mpsd does.  A pid file that an mpsd wrote names no running daemon, since this process has the lock;
        after mpsd was killed, a user can give the pid, the name and the variable to a program of root's, such as `su`.
        """
        pid = self._read_pid()
        if not pid or pid == os.getpid() or self._is_noted():
            return None
        owner = processes.owner(pid)
        if owner is None or owner[0] not in (0, os.geteuid()):  # a user who could write here earlier may have left the file
            return None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.settimeout(1.0)
                probe.connect(str(self.pipe_directory / "control"))
        except OSError:
            return None
        inspector = Inspector()
        try:
            facts = inspector.facts_now(pid, [_DIRECTORY])
        except (OSError, Unreadable):
            return pid  # a process listens, and it may be a daemon
        finally:
            inspector.close()
        if facts is None or facts.program != _DAEMON:
            return None
        return pid if facts.variables.get(_DIRECTORY) == str(self.pipe_directory) else None

    def _write_pid(self) -> None:
        try:
            self.pipe.write(PID_FILE, str(os.getpid()), _PID_MODE)
        except OSError as exc:
            raise UnusablePath(f"the pid file {self.pipe_directory / PID_FILE} cannot be written: {exc.strerror}") from None
        self._note_pid_file()

    def _note_pid_file(self) -> None:
        """Note which pid file mpsd wrote."""
        with suppress(OSError):  # as on a disk that became read-only: the next mpsd looks at the process
            lock = os.open(self.state_directory / LOCK, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(lock, "w") as file:
                file.write(self.pipe.version_of(PID_FILE))

    def _is_noted(self) -> bool:
        """Return whether an mpsd wrote the pid file, and no other daemon has written or replaced it since."""
        with suppress(OSError):
            return (self.state_directory / LOCK).read_bytes() == self.pipe.version_of(PID_FILE).encode()
        return False

    def _read_pid(self) -> int:
        try:
            return int(self.pipe.read(PID_FILE).strip() or 0)
        except ValueError:
            return 0


def _hold(locks: list[int], release: threading.Event, is_held: threading.Event) -> None:
    is_held.set()
    release.wait()  # for ever: as long as mpsd has this lock
    close_all(locks)
