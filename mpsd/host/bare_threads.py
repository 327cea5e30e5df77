"""Threads without mpsd's descriptors: a thread waiting for a file server then keeps only that server's file open.

A thread has the table of descriptors of the thread that starts it, or a copy (unshare(2), CLONE_FILES).  A copy of mpsd's table
can have a client's FUSE file, and close(2) on it waits for the file server.  So one thread closes its copy when mpsd starts,
and starts the next one; each later one is started by one of these.  One of them always waits for work.

What only such a thread has open is closed when mpsd ends.  mpsd's own table stays, with all that is open there, for as long as
another thread of mpsd waits for a file server, also after SIGKILL (killed_daemon.py).

A signal's number is written to the descriptor by which it wakes the event loop (signal.set_wakeup_fd), in the table of the
thread that gets the signal.  There this number is that of /dev/null, or it could be that of a client's descriptor.  Such a
thread takes no other signal than INTERRUPT: one that it took for mpsd would not wake the event loop.
"""

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence

from mpsd.host.descriptors import close_all
from mpsd.host.syscalls import leave_descriptor_table, name_thread

_STANDARD = range(3)
_OPEN = "/proc/thread-self/fd"
_BEGIN_SECONDS = 5.0  # it takes a millisecond
_AGAIN_SECONDS = 0.1
INTERRUPT = signal.SIGWINCH  # for these threads alone: ignored without a handler, and mpsd uses no window
_TAKEN = {INTERRUPT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}  # the others come from the thread itself
BARE_NAME = "mpsd-bare"  # in /proc, once it has given up mpsd's descriptors
MOST_WAITING = 4  # threads that wait for work
MOST_DESCRIPTORS = 64  # of one work; Linux passes at most 253
Work = Callable[[list[int]], None]


class BareThreads:
    """Guards that a thread has copies of the given descriptors, and of mpsd's other descriptors no copy."""

    def __init__(self) -> None:
        """Call it in the main thread.  Raises OSError or RuntimeError if the first thread cannot be started."""
        self._lock = threading.Lock()  # protects the order of requests and the next two; no other lock is taken under it
        self._asked: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._waiting = 0  # threads
        self.is_short = False  # no thread can be started now, and so none takes what is asked
        self._turn = threading.Lock()  # of the thread that takes what is asked next
        self._wakes = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)  # as trio has it
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        with theirs:
            try:
                self._add_thread(theirs.fileno())
            except (OSError, RuntimeError):
                self._ours.close()
                raise

    def start(self, descriptors: Sequence[int], work: Work) -> None:
        """Call `work` in the next free thread, with the numbers of its copies; at most MOST_DESCRIPTORS.

        `work` closes those copies, and what it opens.  It must not use trio's threads: trio would later give one of them other
        work, for mpsd's descriptors.  Raises OSError, and has then done nothing.
        """
        with self._lock:
            socket.send_fds(self._ours, [b"x"], descriptors)
            self._asked.put(work)

    def _add_thread(self, end: int) -> None:
        """Start a thread that waits for work at `end`, and has a copy of nothing else.  Raises OSError, RuntimeError."""
        has_begun = threading.Event()
        troubles: list[OSError] = []
        threading.Thread(target=self._run, args=(end, has_begun, troubles), name="mpsd-bare", daemon=True).start()
        if not has_begun.wait(_BEGIN_SECONDS):
            raise OSError("a thread could not give up its descriptors in time")
        if troubles:
            raise troubles[0]

    def _run(self, end: int, has_begun: threading.Event, troubles: list[OSError]) -> None:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - _TAKEN)
            leave_descriptor_table()
            _replace_all_but(end, self._wakes)
            name_thread(BARE_NAME.encode())
        except OSError as exc:  # a container's seccomp filter can refuse the former
            troubles.append(exc)
            return
        finally:
            has_begun.set()
        with socket.socket(fileno=end) as requests:
            while self._may_wait():
                with self._turn:
                    if not requests.recv(1, socket.MSG_PEEK):
                        return
                    self._leave_to_another(end)
                    found = socket.recv_fds(requests, 1, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)[1]
                    work = self._asked.get()
                work(found)

    def _may_wait(self) -> bool:
        """Count this thread among those that wait, unless they are enough."""
        with self._lock:
            is_wanted = self._waiting < MOST_WAITING
            self._waiting += is_wanted
        return is_wanted

    def _leave_to_another(self, end: int) -> None:
        """Have another thread that waits before this one takes what was asked, which may last for ever."""
        with self._lock:
            self._waiting -= 1
            is_needed = not self._waiting
        while is_needed:
            try:
                self._add_thread(end)
                break
            except (OSError, RuntimeError):
                self.is_short = True
                time.sleep(_AGAIN_SECONDS)  # until mpsd can start one
            with self._lock:
                is_needed = not self._waiting
        self.is_short = False


def begin_bare_threads() -> BareThreads | None:
    """Start the first one, in the main thread; None where the kernel refuses, as a strict container can make it."""
    try:
        return BareThreads()
    except (OSError, RuntimeError):
        return None


def _replace_all_but(end: int, wakes: int) -> None:
    """Close all descriptors of this thread's table but `end`; have /dev/null as the standard ones and as `wakes`, if any."""
    close_all({int(number) for number in os.listdir(_OPEN)} - {end})
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    wanted = {*_STANDARD, *([wakes] if wakes >= 0 else [])}
    for number in wanted - {null}:
        os.dup2(null, number, inheritable=False)
    if null not in wanted:
        os.close(null)
