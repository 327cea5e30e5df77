"""Start threads without mpsd's descriptors: a thread that waits for a file server then keeps open only the file it waits for.

A thread has the table of descriptors of the thread that starts it, or a copy (unshare(2), CLONE_FILES).  A copy of mpsd's table
can have a client's FUSE file, and close(2) of that waits for its server.  So one thread closes its copy when mpsd starts, and
starts the other threads.

A signal's number is written to the descriptor by which it wakes the event loop (signal.set_wakeup_fd), in the table of the
thread that gets the signal.  There this number is that of /dev/null, or it could be that of a client's descriptor.
"""

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable

from mpsd.host.descriptors import close_all
from mpsd.host.syscalls import leave_descriptor_table

_STANDARD = range(3)
_NO_DESCRIPTOR = -1
_OPEN = "/proc/thread-self/fd"
_BEGIN_SECONDS = 5.0  # it takes a millisecond
Work = Callable[[int], None]


class BareThreads:
    """Guards that a thread has a copy of the given socket, and of mpsd's other descriptors no copy."""

    def __init__(self) -> None:
        """Call it in the main thread.  Raises OSError or RuntimeError if the first thread cannot be started."""
        self._lock = threading.Lock()  # protects the order of sockets and work; no other lock is taken while it is held
        self._asked: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        troubles: list[OSError] = []
        wakes = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)  # as trio has it
        has_begun = threading.Event()
        with theirs:
            arguments = (theirs.fileno(), wakes, has_begun, troubles)
            threading.Thread(target=self._run, args=arguments, name="mpsd-bare", daemon=True).start()
            if not has_begun.wait(_BEGIN_SECONDS):
                raise OSError("a thread could not give up its descriptors in time")
        if troubles:
            self._ours.close()
            raise troubles[0]

    def start(self, sock: socket.socket, work: Work) -> None:
        """Call `work` in a new thread, soon, with the number of its copy of the socket; -1 if there is none.  Raises OSError.

        `work` must not use trio's threads: trio would later give one of them other work, for mpsd's descriptors.
        """
        with self._lock:
            socket.send_fds(self._ours, [b"x"], [sock.fileno()])
            self._asked.put(work)

    def _run(self, end: int, wakes: int, has_begun: threading.Event, troubles: list[OSError]) -> None:
        try:
            leave_descriptor_table()
            _replace_all_but(end, wakes)
        except OSError as exc:  # a container's seccomp filter can refuse the former
            troubles.append(exc)
            return
        finally:
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


def _replace_all_but(end: int, wakes: int) -> None:
    """Close all descriptors of this thread's table but `end`; have /dev/null as the standard ones and as `wakes`, if any."""
    close_all({int(number) for number in os.listdir(_OPEN)} - {end})
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    wanted = {*_STANDARD, *([wakes] if wakes >= 0 else [])}
    for number in wanted - {null}:
        os.dup2(null, number, inheritable=False)
    if null not in wanted:
        os.close(null)


def _leave(descriptor: int, has_left: threading.Event, is_closed: threading.Event, work: Work) -> None:
    """Work once the first thread has closed its copy of the socket: the last one to close it waits for what is queued there."""
    try:
        leave_descriptor_table()
    except OSError:
        descriptor = _NO_DESCRIPTOR
    has_left.set()
    is_closed.wait()
    work(descriptor)
