"""Start and end a process of mpsd-inspector, which reads other processes for mpsd (native/include/mpsd_inspector.h)."""

import os
import socket
from pathlib import Path

from msgspec import Struct

from mpsd.host.child import Child

_SOCKET = 3


class InspectorProcess(Child, Struct, eq=False):
    """One process, and mpsd's end of its socket."""

    requests: socket.socket

    def kill(self) -> None:
        self.requests.close()  # this too ends it, unless it waits
        Child.kill(self)


def start(program: Path, mode: str) -> InspectorProcess:
    """Start the program; mode: `--fd` or `--direct`.  Raises OSError.

    All of mpsd waits until the program is executed.  Once clients are served, an inspector starts every other process
    (`Inspector.start_reader`, `start_program`): a client's file that mpsd has at that moment could delay the exec for ever.
    """
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
        return InspectorProcess(pid, os.pidfd_open(pid), ours)
    except BaseException:
        ours.close()  # this ends it
        os.waitpid(pid, 0)
        raise
