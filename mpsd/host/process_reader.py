"""Read files below /proc for callers that may not wait.

Such a read seldom waits, but any user can make it wait for ever: to find a file below /proc/PID, the kernel takes the lock of
that directory, which a user can hold; with some kernels the read waits as well (docs/decisions/029).  So a child process of
mpsd, the *reader*, does the reads one after the other (`mpsd-inspector --direct`).  If the reader waits, mpsd kills it, starts
another one, and reads no process of that user for some seconds, nor that process before the killed reader has ended.  So a
user delays mpsd by at most MOST_WAIT_SECONDS in UNREAD_SECONDS, and searches for descriptors of other users by little more
than MOST_SEARCH_SECONDS.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host import inspector_messages as wire
from mpsd.host import inspector_process
from mpsd.host.descriptors import FULL, spare_descriptors
from mpsd.host.inspector_messages import CgroupLook, InspectorOp, LinkedFile, Question
from mpsd.host.inspector_process import InspectorProcess
from mpsd.host.polling import is_readable
from mpsd.host.programs import own_program
from mpsd.model.process import MOST_PID

LOOK_SECONDS = 0.002  # such a read takes 22 us
MOST_WAIT_SECONDS = 0.04  # for the processes of one user, while the kernel keeps the reader waiting
MOST_SEARCH_SECONDS = 0.5  # of the processor's time, for searches of 2 ms and more: one of 1,000 links takes about that
UNREAD_SECONDS = 5.0
_SPIN_SECONDS = 0.0002  # before mpsd gives up its processor, which a busy machine gives back after milliseconds only
_DEADLINE_SECONDS = 5.0  # for a reader that does not wait in the kernel: no processor is free, or SIGSTOP has stopped it
_MOST_WAITS = 4096  # users; for each, the waits that its processes caused
_START_SECONDS = 1.0  # for a new reader, which takes 2 ms: a user may hold the directory of that process as well
_MOST_STUCK = 64  # killed readers that have not ended, of processes of one user; then none of theirs is read
_NO_SHARE = -1  # of a reader that was killed before it read
MOST_THREADS = 1024  # that it lists of a process


class Unanswered(OSError):
    """The reader did not read the process.  mpsd knows nothing about the process, so it counts as alive."""


class _Wait(Struct):
    """Seconds for which the processes of one user made the reader wait, and those that long searches through them took."""

    since: float
    seconds: float = 0.0
    searched: float = 0.0

    @property
    def why_unread(self) -> str:
        """Why mpsd does not read this user's processes; empty if it does."""
        if self.seconds >= MOST_WAIT_SECONDS:
            return "one of them kept its reader waiting in the kernel"
        return "they have too many descriptors, or with links too long" if self.searched >= MOST_SEARCH_SECONDS else ""


class _Asked(Struct, frozen=True):
    """A process that was asked about.  directory: the inode of its directory, which no later process with this pid has."""

    share: int
    pid: int = 0
    directory: int = 0


class _Stuck(Struct, frozen=True, eq=False):
    """A reader that mpsd killed, and the process that it waits for."""

    of: _Asked
    process: InspectorProcess


class ProcessReader:
    """Guards that one reader runs, and does one read at a time.  Any thread may call these methods.

    uid_of: return the user of a process, against which a wait counts; it may not wait.  program: mpsd-inspector; None: the one
    of this installation.
    """

    def __init__(self, uid_of: Callable[[int], int], program: Path | None = None) -> None:
        self._uid_of = uid_of
        program = program or own_program("inspector")
        self._start: Callable[[], InspectorProcess] = partial(inspector_process.start, program, "--direct")
        self._ranges = NO_RANGES
        self._lock = threading.Lock()  # protects all below; an inspector's may be taken while it is held
        self._process: InspectorProcess | None = None
        self._owner = 0  # the pid of the process that started the reader: after a fork that is the parent
        self._waits: dict[int, _Wait] = {}  # by share
        self._stuck: list[_Stuck] = []
        self._rest_until = 0.0  # after a reader did not start: of time.monotonic()

    def count_by(self, ranges: UidRanges) -> None:
        """Count the uids of each of these ranges as one user."""
        self._ranges = ranges

    def start_by(self, start: Callable[[], InspectorProcess]) -> None:
        """Start readers by calling `start` from now on, which raises OSError; and one now: later mpsd's callers would wait."""
        self._start = start
        with self._lock, suppress(OSError):  # the next read tries again
            self._open()

    def for_each_apart(self) -> "ProcessReader":
        """Return another reader, which counts waits against the process alone that causes them.  Close it soon."""
        made = ProcessReader(lambda pid: pid)
        made._start = self._start
        return made

    def close(self) -> None:
        """End the reader, if it runs.  A later read starts another one."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None and self._owner == os.getpid():
                process.kill()
                process.reap()
            elif process is not None:
                process.leave()
            while self._stuck:
                os.close(self._stuck.pop().process.pidfd)  # killed before; mpsd's reaper collects it

    @property
    def pid(self) -> int:
        """The pid of the reader; 0 if none runs."""
        process = self._process
        return process.pid if process else 0

    # -- reads -----------------------------------------------------------------------------------------------------------

    def stat(self, pid: int) -> bytes:
        """Return the contents of /proc/PID/stat, of which some fields may be of the first thread alone.  Raises OSError."""
        return self._read(Question(InspectorOp.STAT, pid))

    def cgroup(self, pid: int) -> CgroupLook:
        """Return what the process shows of its cgroups.  Raises OSError, as for a path of more than 4,096 bytes."""
        return wire.parse_cgroup(self._read(Question(InspectorOp.CGROUP, pid)))

    def linked_file(self, pid: int, name: str) -> LinkedFile:
        """Return the target of the link /proc/PID/`name`: exe, root, or fd/3.  Raises OSError."""
        return wire.parse_linked_file(self._read(Question(InspectorOp.FILE, pid, [name])))

    def text(self, pid: int, name: str) -> bytes:
        """Return the contents of /proc/PID/`name`: status, comm or uid_map; the first 65,528 bytes.  Raises OSError."""
        return self._read(Question(InspectorOp.TEXT, pid, [name]))

    def children(self, pid: int) -> list[int]:
        """Return its children; none if the kernel does not list them (CONFIG_PROC_CHILDREN).  Raises OSError."""
        return wire.parse_numbers(self._read(Question(InspectorOp.CHILDREN, pid)))

    def threads(self, pid: int, *, few: bool = False) -> list[int]:
        """Return its threads, the first MOST_THREADS, or 64 if few are enough.  Raises OSError."""
        return wire.parse_numbers(self._read(Question(InspectorOp.THREADS_OF, pid, ["few"] if few else [])))

    def namespaces(self, pid: int) -> tuple[int, ...]:
        """Return the numbers of the process's pid namespace and of those above, mpsd's own last.  Raises OSError."""
        return wire.parse_spaces(self._read(Question(InspectorOp.SPACES, pid)))

    def numbers(self, pid: int, links: Sequence[str]) -> set[int]:
        """Return the numbers of the process's descriptors that have these links, or links with these last names.

        The lowest 64.  Raises OSError.
        """
        try:
            took_ms, payload = self._ask(Question(InspectorOp.FIND, pid, links))
        except OSError as exc:
            if exc.errno == errno.E2BIG:  # the search took too long
                self._note_search(pid, MOST_SEARCH_SECONDS)
            raise
        if took_ms / 1000 >= LOOK_SECONDS:
            self._note_search(pid, took_ms / 1000)
        return set(wire.parse_numbers(payload))

    def _note_search(self, pid: int, seconds: float) -> None:
        with self._lock:
            self._wait_of(self._share_of(pid)).searched += seconds

    def _read(self, question: Question) -> bytes:
        return self._ask(question)[1]

    def _ask(self, question: Question) -> tuple[int, bytes]:
        """Return the count and the payload of the answer.  Raises OSError."""
        if not 0 < question.pid <= MOST_PID:
            raise ProcessLookupError(errno.ESRCH, f"{question.pid} is not a pid")
        request = wire.pack_question(question, 0, 1, 0)
        with self._lock:
            self._forget_old()
            if self._waits or self._stuck:
                self._check(question.pid)
            process = self._send(request)
            answer = self._receive(process, question.pid)
        return wire.parse_answer(answer)

    def _share_of(self, pid: int) -> int:
        return self._ranges.share_of(self._uid_of(pid))

    def _asked(self, pid: int) -> _Asked:
        return _Asked(self._share_of(pid), pid, _directory(pid))

    # -- the reader ------------------------------------------------------------------------------------------------------

    def _send(self, request: bytes) -> InspectorProcess:
        """Send the request to the reader, or to a new one if it has died.  Raises OSError."""
        for _ in range(2):
            process = self._open()
            try:
                process.requests.send(request)
                return process
            except (BrokenPipeError, ConnectionResetError):
                process.kill()
                process.reap()
                self._process = None
        raise Unanswered(errno.EPIPE, "the reader of processes dies when it is asked")

    def _open(self) -> InspectorProcess:
        if self._process is not None and self._owner != os.getpid():
            self._process.leave()
            self._process = None
        if self._process is None:
            try:
                self._process = self._started()
            except OSError as exc:
                if exc.errno not in FULL:
                    raise
                with spare_descriptors():
                    self._process = self._started()
            self._owner = os.getpid()
        return self._process

    def _started(self) -> InspectorProcess:
        """Start a reader.  Raises OSError; Unanswered if its own directory was held before it had looked up its status."""
        if time.monotonic() < self._rest_until or self._has_most_stuck(_NO_SHARE):
            raise Unanswered(errno.EBUSY, "no process is read now: a new reader of processes did not start")
        process = self._start()
        try:
            if process.take_status(_START_SECONDS):
                return process
        except BaseException:
            self._give_up(process, _Asked(_NO_SHARE))
            raise
        self._give_up(process, _Asked(_NO_SHARE))
        self._rest_until = time.monotonic() + UNREAD_SECONDS
        raise Unanswered(errno.ETIMEDOUT, "the reader of processes does not start")

    def _receive(self, process: InspectorProcess, pid: int) -> bytes:
        """Return the answer.  Raises Unanswered; then another reader does the next read."""
        spin_until = time.monotonic() + _SPIN_SECONDS
        while time.monotonic() < spin_until:
            with suppress(BlockingIOError):
                return self._received(process, pid)
        until = time.monotonic() + _DEADLINE_SECONDS
        asked = wait = None
        while not is_readable(process.requests, LOOK_SECONDS):
            if process.waits():
                asked = asked or self._asked(pid)  # once: by the next look it can be another user's, or have gone
                wait = self._wait_of(asked.share)
                wait.seconds += LOOK_SECONDS
                if wait.seconds < MOST_WAIT_SECONDS:
                    continue
            elif time.monotonic() < until:
                continue
            self._give_up(process, asked or self._asked(pid))
            raise Unanswered(errno.ETIMEDOUT, f"pid {pid} was not read: its reader {'waits' if wait else 'does not run'}")
        return self._received(process, pid)

    def _received(self, process: InspectorProcess, pid: int) -> bytes:
        if not (answer := process.requests.recv(wire.DATAGRAM_BYTES)):
            self._give_up(process, self._asked(pid))
            raise Unanswered(errno.EPIPE, f"pid {pid} was not read: its reader died")
        return answer

    def _give_up(self, process: InspectorProcess, asked: _Asked) -> None:
        """Kill the reader.  Until it has ended, mpsd does not read the process again: any user can hold its directory."""
        process.kill()
        self._process = None
        self._stuck.append(_Stuck(asked, process))

    def _has_most_stuck(self, share: int) -> bool:
        return sum(each.of.share == share for each in self._stuck) >= _MOST_STUCK

    def _wait_of(self, share: int) -> _Wait:
        if len(self._waits) >= _MOST_WAITS and share not in self._waits:
            del self._waits[next(iter(self._waits))]  # the oldest
        return self._waits.setdefault(share, _Wait(time.monotonic()))

    def _forget_old(self) -> None:
        """Forget old waits, and reap killed readers: as long as neither exists, a read need not look up the process's user."""
        oldest = time.monotonic() - UNREAD_SECONDS
        while self._waits and next(iter(self._waits.values())).since < oldest:
            del self._waits[next(iter(self._waits))]
        for each in [each for each in self._stuck if each.process.has_ended()]:
            each.process.reap()
            self._stuck.remove(each)

    def _check(self, pid: int) -> None:
        """Raise Unanswered if mpsd does not read this process now, or none of its user's."""
        asked = self._asked(pid)
        if not asked.directory:  # it has gone, so its user is unknown, and a read does not wait
            return
        same = (pid, asked.directory)  # of another user by now, perhaps
        if any((each.of.pid, each.of.directory) == same for each in self._stuck):
            raise Unanswered(errno.EBUSY, f"pid {pid} is not read: it keeps a reader waiting in the kernel")
        wait = self._waits.get(asked.share)
        why = wait.why_unread if wait else ""
        if self._has_most_stuck(asked.share):
            why = f"{_MOST_STUCK} of them keep readers waiting in the kernel"
        if why:
            raise Unanswered(errno.EBUSY, f"processes of uid {asked.share} are not read for {UNREAD_SECONDS:.0f} s: {why}")


def _directory(pid: int) -> int:
    """Return the inode of /proc/PID; 0 if the process has gone.  The kernel keeps it as long as a user holds its lock."""
    try:
        return os.stat(f"/proc/{pid}").st_ino
    except OSError:
        return 0
