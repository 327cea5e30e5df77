"""Start and end a process of mpsd-inspector, which reads other processes for mpsd (native/include/mpsd_inspector.h)."""

import errno
import os
import queue
import socket
import threading
from array import array
from pathlib import Path

from msgspec import Struct

from mpsd.host.bare_threads import BareThreads
from mpsd.host.child import Child
from mpsd.host.descriptors import close_all
from mpsd.host.polling import is_readable

_SOCKET = 3
_HEAD_BYTES, _ROOM = 8, socket.CMSG_SPACE(4)  # an answer without a payload, with one descriptor
_STATUS_BYTES = 256  # its first lines, proc(5): the name, the umask, the state
_SPAWN_SECONDS = 5.0  # it takes a few milliseconds


class InspectorProcess(Child, Struct, eq=False):
    """One process, and mpsd's end of its socket.  status: a reader's descriptor of /proc/PID/status; -1: none."""

    requests: socket.socket
    status: int = -1

    def take_status(self, seconds: float) -> bool:
        """Take the descriptor that a reader sends first; return False if it has not come within `seconds`.  Raises OSError."""
        if not is_readable(self.requests, seconds):
            return False
        data, ancillary, flags, _ = self.requests.recvmsg(_HEAD_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
        for _, _, numbers in ancillary:
            [self.status] = array("i", numbers)
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "no descriptor is free for the status of the reader")
        return bool(data)

    def waits(self) -> bool:
        """Return whether a reader waits in the kernel.  This looks up no name, and so it never waits."""
        try:
            return b"\nState:\tD" in os.pread(self.status, _STATUS_BYTES, 0)
        except OSError:
            return False

    def leave(self) -> None:
        """Close mpsd's end and the descriptor, which ends the process unless it waits, or another process has the same end."""
        self.requests.close()
        status, self.status = self.status, -1
        if status >= 0:
            os.close(status)

    def kill(self) -> None:
        self.leave()
        Child.kill(self)


def start(program: Path, mode: str, bare: BareThreads | None = None) -> InspectorProcess:
    """Start the program; mode: `--fd` or `--direct`.  Raises OSError.

    All of mpsd waits until the program is executed.  The exec closes copies of what the calling thread has open, and waits for
    the server of a client's file among them.  So once clients are served a bare thread calls it, or an inspector starts the
    process (`Inspector.start_reader`, `start_program`).
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = _spawn(program, mode, theirs.fileno()) if bare is None else _spawn_in(bare, program, mode, theirs.fileno())
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


def _spawn(program: Path, mode: str, end: int) -> int:
    nothing = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(_SOCKET)]
    actions = [*nothing, (os.POSIX_SPAWN_DUP2, end, _SOCKET)]
    return os.posix_spawn(program, [program.name, mode, str(_SOCKET)], {}, file_actions=actions, setsigmask=[])


def _spawn_in(bare: BareThreads, program: Path, mode: str, end: int) -> int:
    if bare.is_short:  # each caller would wait in vain, and the event loop is one
        raise OSError(errno.EAGAIN, "no thread can be started")
    made: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
    is_overdue = threading.Event()

    def work(descriptors: list[int]) -> None:
        try:
            if not is_overdue.is_set():  # else it would stay a zombie
                made.put(_spawn(program, mode, *descriptors))
        except OSError as exc:
            made.put(exc)
        finally:
            close_all(descriptors)

    bare.start([end], work)
    try:
        answer = made.get(timeout=_SPAWN_SECONDS)
    except queue.Empty:  # if it is just being started, it ends: its socket is closed here
        is_overdue.set()
        raise OSError(errno.ETIMEDOUT, "no thread could start it in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
