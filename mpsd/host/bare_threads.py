"""Start threads without mpsd's descriptors: a thread that waits for a file server then keeps open only the file it waits for.

A thread has the table of descriptors of the thread that starts it, or a copy (unshare(2), CLONE_FILES).  A copy of mpsd's table
can have a client's FUSE file, and close(2) of that waits for its server.  So one thread closes its copy when mpsd starts, and
starts the other threads.
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
    """Guards that a thread has a copy of the given socket, and of mpsd's other descriptors no copy."""

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

        `work` must not use trio's threads: trio would later give one of them other work, for mpsd's descriptors.
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
