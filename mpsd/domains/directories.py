"""Manage a domain's directories: the access to the vendor's files in them, and the identity of the vendor daemon there.

The vendor opens its files to all users (measured, driver 580): `control`, `control_lock` and the pid file are 0666, the FIFO
`log` is 0777 under any umask.  Its servers run as their clients' users and connect to `control` by its path.  So the
directory above is closed on the host (0700), and the vendor's programs run in a mount namespace where it is open
(native/launcher).  Where that is not possible the directory is 0711, and other users reach the files.
Prose: docs/domains.md, "Private directories".
"""

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mpsd.domains.leftovers import DIRECTORY_VARIABLE, is_vendors
from mpsd.errors import UnusablePath
from mpsd.host import processes
from mpsd.host.file_identity import identity_at
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.model.process import ProcessId

_DAEMON = "nvidia-cuda-mps-control"
PID_FILE = f"{_DAEMON}.pid"
CLOSED, OPEN = 0o700, 0o711
_RECORD = "daemon"
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred, unix(7)
_READ_BYTES = 64


class DomainDirectories(Struct, frozen=True):
    """Guards that mpsd trusts no file in a domain's directories that another user could have put there."""

    path: Path

    @property
    def pipe(self) -> Path:
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        return self.path / "log"

    def make(self, mode: int, owner: int | None) -> None:
        """Make the directories, without files of an earlier vendor daemon that could be taken for this one's.

        owner: the vendor daemon's user, None for ours.  Raise UnusablePath.
        """
        try:
            self._make(mode, owner)
        except OSError as exc:
            why = "the disk of the state directory is full" if exc.errno == errno.ENOSPC else exc.strerror
            raise UnusablePath(f"{exc.filename or self.path} cannot be made: {why}") from None

    def _make(self, mode: int, owner: int | None) -> None:
        self.path.parent.mkdir(mode=OPEN, parents=True, exist_ok=True)
        for directory in (self.path, self.pipe, self.log):
            directory.mkdir(mode=CLOSED, exist_ok=True)
        os.chmod(self.path, mode)
        os.chmod(self.pipe, mode if os.geteuid() else OPEN)  # servers pass it as their users, and need not list it
        os.chmod(self.log, CLOSED)  # servers inherit its files
        for directory in (self.pipe, self.log):
            if owner is not None:
                os.chown(directory, owner, owner)
        (self.pipe / PID_FILE).unlink(missing_ok=True)
        self._write_record("")  # room for the record: without one the next mpsd knows no daemon that it cannot read

    def open_to_servers(self) -> None:
        """Open the directory where servers run as their users without a namespace: then all users can pass it."""
        os.chmod(self.path, OPEN)

    @property
    def is_closed(self) -> bool:
        """Whether other users cannot pass it."""
        try:
            return not stat.S_IMODE(os.stat(self.path, follow_symlinks=False).st_mode) & 0o077
        except OSError:
            return False

    # -- identity of the vendor daemon -------------------------------------------------------------------------------

    def record(self, process: ProcessId) -> None:
        """Record the daemon for the next mpsd, and make the vendor's pid file 0600, which is 0666.  Call it in a thread."""
        with suppress(OSError):
            os.chmod(self.pipe / PID_FILE, 0o600)
        with suppress(OSError):
            self._write_record(f"{process.pid} {process.start_time}")

    def _write_record(self, text: str) -> None:
        """Write it in place, where the disk has room for it already.  Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self.path / _RECORD, flags, 0o600), "w") as file:
            file.write(f"{text:<{_READ_BYTES}}")

    def recorded(self) -> ProcessId | None:
        """Return the process that an earlier mpsd recorded; None if it did not, or that process has gone."""
        words = _read(self.path / _RECORD).split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        process = ProcessId(int(words[0]), int(words[1]))
        # The name too: a state directory that survives a reboot has pids and start times of before it.  Where mpsd cannot read
        # them now, the record is believed: a living daemon that is not found loses its directories.
        is_meant = is_vendors(process.pid) or not processes.command(process.pid)
        return process if is_meant and processes.is_alive(process) else None

    def find_by_pid_file(self, program: Path, owner: int, inspector: Inspector) -> ProcessId | None:
        """Return the process that the vendor's pid file names, if it can only be its daemon.

        Other users may have written the file if they reach it, and a set-user-ID program has the environment that they give it:
        so its user and its program are checked, before anything that its owner could delay.
        """
        pid = self.named(owner)
        return self._identify(pid, program, owner, inspector) if pid else None

    def named(self, owner: int) -> int:
        """Return the pid in the vendor's pid file; 0 if it has none, or that of another user's process.  It never waits."""
        word = _read(self.pipe / PID_FILE).strip()
        return int(word) if word.isdecimal() and _belongs_to(int(word), owner) else 0

    def find_by_socket(self, program: Path, owner: int, inspector: Inspector) -> ProcessId | None:
        """Return the process that listens at `control`, by the kernel: if the pid file is missing or names another."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(str(self.pipe / "control"))
                pid, _, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            except OSError:  # no process listens, or its queue is full
                return None
        return self._identify(pid, program, owner, inspector)

    def _identify(self, pid: int, program: Path, owner: int, inspector: Inspector) -> ProcessId | None:
        """Check that a process of mpsd's own user runs the vendor's program here; this waits for the inspector."""
        process = processes.find(pid)
        if process is None or not _belongs_to(pid, owner) or not _runs(pid, program):
            return None
        try:
            facts = inspector.facts_now(pid, [DIRECTORY_VARIABLE])
        except (OSError, Unreadable):
            return None
        if facts is None or facts.variables.get(DIRECTORY_VARIABLE) != str(self.pipe):
            return None  # the daemon of another domain, or a later process that got the pid of one that died
        return process if processes.is_alive(process) else None

    def trouble(self, owner: int) -> str:
        """Return why the files in here are not trusted: another user owns a directory, or may write to it; or ""."""
        return next(self._troubles(owner), "")

    def _troubles(self, owner: int) -> Iterator[str]:
        for directory, owners in ((self.path, {os.geteuid()}), (self.pipe, {os.geteuid(), owner})):
            try:
                found = os.stat(directory, follow_symlinks=False)
            except OSError as exc:
                yield f"{directory}: {exc.strerror}"
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield f"{directory} is not a directory"
            elif found.st_uid not in owners:
                yield f"{directory} is uid {found.st_uid}'s"
            elif found.st_mode & 0o022:
                yield f"{directory} may be written by others (mode {stat.S_IMODE(found.st_mode):04o})"


def _read(path: Path) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _belongs_to(pid: int, owner: int) -> bool:
    """Return whether it runs as that user; its group may be any."""
    found = processes.owner(pid)
    return found is not None and found[0] == owner


def _runs(pid: int, program: Path) -> bool:
    """Return whether its executable is the program; for a script, whether it has the vendor's name."""
    wanted = os.path.realpath(program)
    if not (found := processes.linked_file(pid, "exe")):
        return False
    running = found.path.removesuffix(" (deleted)")  # as after an upgrade
    # From inside a chroot the kernel shows the whole path of a file in another mount namespace: then it is the same file.
    is_program = running == wanted or (running.endswith(wanted) and found.identity == identity_at(wanted))
    return is_program or (_is_script(program) and os.path.basename(running).startswith(_DAEMON))


def _is_script(program: Path) -> bool:
    try:
        with open(program, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
