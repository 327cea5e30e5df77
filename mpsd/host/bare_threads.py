"""Start threads that have none of mpsd's descriptors: such a thread can wait for a file server, and keeps nothing else open.

A thread has the table of descriptors of the thread that starts it, or a copy (unshare(2), CLONE_FILES).  A copy of mpsd's table
may have a client's FUSE file in it, and to close that waits for its server.  So one thread gives up its copy when mpsd starts,
and starts all others.
"""

import os
import queue
import socket
import threading
from collections.abc import Callable

from mpsd.host.syscalls import leave_descriptor_table

_STANDARD = range(3)
_NO_DESCRIPTOR = -1
_MOST_DESCRIPTORS = 2**31 - 1  # close_range(2) takes the whole range at once
_BEGIN_SECONDS = 5.0  # it takes a millisecond
Work = Callable[[int], None]


class BareThreads:
    """Guards that the threads have no descriptor of mpsd's but a copy of the given socket."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError if the first thread cannot be started."""
        self._lock = threading.Lock()  # protects the order of sockets and work; no other lock is taken while it is held
        self._asked: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        has_begun = threading.Event()
        with theirs:
            threading.Thread(target=self._run, args=(theirs.fileno(), has_begun), name="mpsd-bare", daemon=True).start()
            if not has_begun.wait(_BEGIN_SECONDS):
                raise OSError("a thread could not give up its descriptors")

    def start(self, sock: socket.socket, work: Work) -> None:
        """Call `work` in a new thread, soon, with the number of its copy of the socket; -1 if there is none.  Raises OSError.

        The thread must start no other: trio would use that one for other work, with these descriptors.
        """
        with self._lock:
            socket.send_fds(self._ours, [b"x"], [sock.fileno()])
            self._asked.put(work)

    def _run(self, end: int, has_begun: threading.Event) -> None:
        leave_descriptor_table()
        os.closerange(_STANDARD.stop, end)
        os.closerange(end + 1, _MOST_DESCRIPTORS)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in _STANDARD:
            os.dup2(null, number, inheritable=False)
        if null not in _STANDARD:
            os.close(null)
        has_begun.set()
        with socket.socket(fileno=end) as requests:
            while found := socket.recv_fds(requests, 1, 1)[1]:  # for ever: this is the thread's life
                work, has_left, is_closed = self._asked.get(), threading.Event(), threading.Event()
                try:
                    threading.Thread(target=_leave, args=(found[0], has_left, is_closed, work), daemon=True).start()
                    has_left.wait()
                except RuntimeError:  # no further thread
                    work(_NO_DESCRIPTOR)
                os.close(found[0])
                is_closed.set()


def _leave(descriptor: int, has_left: threading.Event, is_closed: threading.Event, work: Work) -> None:
    """Work once the first thread has closed its copy of the socket: the last one to close it waits for what is queued there."""
    try:
        leave_descriptor_table()
    except OSError:
        descriptor = _NO_DESCRIPTOR
    has_left.set()
    is_closed.wait()
    work(descriptor)
