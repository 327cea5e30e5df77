"""Start and end a process of mpsd-inspector, which reads other processes for mpsd (native/include/mpsd_inspector.h)."""

import os
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SOCKET = 3


@dataclass(slots=True)
class InspectorProcess:
    """One process, and mpsd's end of its socket."""

    requests: socket.socket
    pid: int
    pidfd: int

    def kill(self) -> None:
        """Send SIGKILL and close the socket.  It may end later: some waits in the kernel ignore SIGKILL."""
        self.requests.close()  # this too ends it, unless it waits
        with suppress(ProcessLookupError, PermissionError):  # mpsd has changed its user since
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def reap(self) -> None:
        """Wait for its end and take its status."""
        with suppress(ChildProcessError):  # mpsd's reaper has taken it
            os.waitpid(self.pid, 0)
        os.close(self.pidfd)


def start(program: Path, mode: str) -> InspectorProcess:
    """Start the program; mode: `--fd` or `--direct`.  Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        nothing = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(_SOCKET)]
        actions = [*nothing, (os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET)]
        try:
            pid = os.posix_spawn(program, [program.name, mode, str(_SOCKET)], {}, file_actions=actions)
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    try:
        return InspectorProcess(ours, pid, os.pidfd_open(pid))
    except BaseException:
        ours.close()  # this ends it
        os.waitpid(pid, 0)
        raise
