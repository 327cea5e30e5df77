"""Reads of other processes that their users can block for ever, done by a process that can be killed and replaced.

docs/decisions/029-reads-of-clients-may-never-end.md lists those reads, and the ones that never wait.  The same process starts
all programs: it has no client's descriptors, which mpsd's own exec would have to close.  Every function here ends by its
deadline.  `*_now`, `start_reader` and `start_program` block their caller until then.
"""

import errno
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from mpsd.errors import UnusablePath
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host import inspector_messages as wire
from mpsd.host import inspector_process, processes
from mpsd.host.bare_threads import BareThreads
from mpsd.host.child import Child
from mpsd.host.descriptors import close_all
from mpsd.host.inspector_answers import Busy, Unreadable, check_gone, overdue, receive
from mpsd.host.inspector_messages import CgroupLook, Frozen, InspectorOp, Pair, Question, Same, StartFacts
from mpsd.host.inspector_process import InspectorProcess
from mpsd.host.polling import is_readable, until_readable
from mpsd.host.programs import own_program

log = structlog.get_logger()
DEADLINE_SECONDS = 1.0  # such a read takes 0.2 ms; the rest is for a very busy machine
_SLACK_SECONDS = 0.5  # after the deadline; a child that outlives it cannot be killed
_PING_SECONDS = 0.5
_STARTS = 5  # times the deadline: a new process reads nothing that hangs, and waits for a processor on a busy machine
_CGROUP_WAITS = 10  # times the deadline: before Linux 6.8 one user can hold the lock of all cgroups for half of it, and again
_AGAIN_SECONDS = 0.05
_OPERATORS = 0xFFFFFFFF  # a share of their own: no process has this uid
_TURNS = 3  # questions about one user's frozen clients at a time: a thaw has room too (MPSD_INSPECTOR_CGROUP_SHARE)
_EXEC_SECONDS = 5.0  # until a program's file is read


class Inspector:
    """Guards the inspector's process: started at the first request, replaced when it does not answer.  Any thread may use it.

    program: mpsd-inspector; None: the one of this installation.  ranges: whose uids count as one user.  bare: where the process
    is started; None: in the calling thread, before clients are served.
    """

    def __init__(
        self,
        program: Path | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        ranges: UidRanges = NO_RANGES,
        bare: BareThreads | None = None,
    ) -> None:
        self._ranges = ranges
        self._bare = bare
        self._program = program or own_program("inspector")
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()  # protects the process; no other lock is taken while it is held
        self._process: InspectorProcess | None = None
        self._turns: dict[int, trio.Semaphore] = {}  # by share

    # -- reads -----------------------------------------------------------------------------------------------------------

    def share_of(self, pid: int) -> int:
        """Return the number of the user against which reads of the process count."""
        return self._ranges.share_of(processes.effective_uid(pid))

    async def facts(self, pid: int, names: Sequence[str]) -> StartFacts | None:
        """Return the facts from the process's start; None if it has ended, or mpsd may not read it.  Raises Unreadable."""
        try:
            data, _ = await self._ask(Question(InspectorOp.FACTS, pid, names))
        except OSError as exc:
            check_gone(exc, pid)
            return None
        return wire.parse_facts(data)

    async def cgroup(self, pid: int) -> CgroupLook:
        """Return the process's cgroups.  Raises Unreadable."""
        try:
            data, _ = await self._ask(Question(InspectorOp.CGROUP, pid), deadlines=_CGROUP_WAITS)
        except OSError as exc:
            if exc.errno in processes.GONE:
                return CgroupLook()
            raise Unreadable(f"its cgroups cannot be read: {os.strerror(exc.errno or 0)}") from None
        return wire.parse_cgroup(data)

    async def frozen(self, pids: Sequence[int], unified: Path, share: int) -> dict[int, Frozen]:
        """Return how a frozen cgroup of version 2 holds, as by `docker pause`, or may hold those of one user's processes.

        Their state does not show that.  unified: where version 2 is mounted.  share: the user's number.  Raises Unreadable.
        """
        found: dict[int, Frozen] = {}
        for at in range(0, len(pids), wire.MOST_PAIRS):
            some = pids[at : at + wire.MOST_PAIRS]
            question = Question(InspectorOp.FROZEN, some[0], [os.fspath(unified)], [Pair(0, 0, pid) for pid in some])
            data = await self._ask_in_turn(question, share)
            found.update((pid, frozen) for pid, frozen in zip(some, wire.parse_frozen(data), strict=True) if frozen)
        return found

    async def _ask_in_turn(self, question: Question, share: int) -> bytes:
        """Ask once this user's other questions of the kind leave room, and the inspector has room.  Raises Unreadable."""
        turns, until = self._turns.setdefault(share, trio.Semaphore(_TURNS)), trio.current_time() + self._deadline_seconds
        try:
            with trio.fail_at(until):
                await turns.acquire()
        except trio.TooSlowError:
            raise Unreadable(f"pid {question.pid} was not read: its user's others take long") from None
        try:
            while True:
                try:
                    return (await self._ask(question, share))[0]
                except (Busy, OSError) as exc:
                    if trio.current_time() >= until:
                        raise Unreadable(f"pid {question.pid} was not read: {exc}") from None
                await trio.sleep(_AGAIN_SECONDS)
        finally:
            turns.release()
            if turns.value == _TURNS:
                self._turns.pop(share, None)

    async def ask_of(self, share: int, op: InspectorOp, *words: str) -> bytes:
        """Return the payload of the answer to a question about no process; its child counts against the user with this share.

        Raises OSError, Unreadable.
        """
        try:
            return (await self._ask(Question(op, words=words), share))[0]
        except Unreadable:
            raise Unreadable(f"{words[0]} has not answered in time, or its user's others have not") from None

    async def cgroups(self, pids: Sequence[int], uid: int | None, seconds: float) -> dict[int, str]:
        """Return what those processes show of their cgroups that can be read in this time; nothing for one that has gone.

        uid: the user who wants to know it, against whom the reads count; None: an operator.
        """
        found: dict[int, str] = {}
        share, left = _OPERATORS if uid is None else self._ranges.share_of(uid), list(pids)
        with trio.move_on_after(seconds):
            while left:
                pairs = [Pair(0, 0, pid) for pid in left[: wire.MOST_PAIRS]]
                try:
                    data, _ = await self._ask(Question(InspectorOp.PATHS, pairs=pairs), share, _CGROUP_WAITS)
                except (OSError, Unreadable):
                    await trio.sleep(_AGAIN_SECONDS)
                    continue
                texts = wire.parse_cgroups(data)
                found.update((pid, text) for pid, text in zip(left, texts, strict=False) if text is not None)
                left = left[len(texts) :]
        return found

    def facts_now(self, pid: int, names: Sequence[str]) -> StartFacts | None:
        """Return the facts, as `facts` does."""
        try:
            data, _ = self._ask_now(Question(InspectorOp.FACTS, pid, names))
        except OSError as exc:
            check_gone(exc, pid)
            return None
        return wire.parse_facts(data)

    def maps_now(self, pid: int) -> bytes:
        """Return the beginning of the process's /proc/PID/maps.  Raises OSError, Unreadable."""
        return self._ask_now(Question(InspectorOp.MAPS, pid))[0]

    def same_now(self, pairs: Sequence[Pair]) -> list[Same]:
        """Return whether both descriptors of each pair are one open file.

        UNKNOWN for all pairs of a user if one of the user's processes cannot be read.
        """
        found = [Same.UNKNOWN] * len(pairs)
        of_user: dict[int, list[int]] = {}
        for place, pair in enumerate(pairs):
            of_user.setdefault(self.share_of(pair.pid), []).append(place)
        for places in of_user.values():
            with suppress(OSError, Unreadable):
                for at in range(0, len(places), wire.MOST_PAIRS):
                    some = places[at : at + wire.MOST_PAIRS]
                    asked = [pairs[place] for place in some]
                    data, _ = self._ask_now(Question(InspectorOp.SAME, asked[0].pid, (), asked))
                    for place, same in zip(some, wire.parse_same(data), strict=True):
                        found[place] = same
        return found

    def take_now(
        self, pid: int, pidfd: int, links: Sequence[str], known: Sequence[Pair], device: tuple[int, int] = (0, 0)
    ) -> list[tuple[int, int]]:
        """Duplicate the process's descriptors with one of these links, and of this device.

        Returns the number in the process and the duplicate, which the caller owns, for each; at most wire.MOST_TAKEN, and none
        that `known` has.  Raises OSError, Unreadable.
        """
        data, taken = self._ask_now(Question(InspectorOp.TAKE, pid, links, known[: wire.MOST_PAIRS], device), [pidfd])
        numbers = wire.parse_numbers(data)
        if len(numbers) != len(taken):
            close_all(taken)
            raise Unreadable("mpsd has no descriptor left for the received ones")
        return list(zip(numbers, taken, strict=True))

    # -- new processes ---------------------------------------------------------------------------------------------------

    def start_reader(self) -> InspectorProcess:
        """Start a process that answers reads on its socket, as `mpsd-inspector --direct` does.  Raises OSError."""
        end, pid = self._send(Question(InspectorOp.READER))
        try:
            child = self._child(end, pid)
        except BaseException:
            end.close()
            raise
        end.setblocking(False)
        return InspectorProcess(child.pid, child.pidfd, end)

    def start_program(
        self, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int], uid: int | None = None
    ) -> Child:
        """Start a program, named by its full path, in a new session and in `/`; blocks until it is executed.

        descriptors: its numbers 0, 1, 2, and 3 if four are given.  uid: its user, without groups; None: mpsd's.  Raises
        OSError.
        """
        variables = [f"{name}={value}" for name, value in environment.items() if not name.startswith("/")]
        question = Question(InspectorOp.RUN, words=[*variables, *command])
        end, pid = self._send(question, descriptors, wire.SAME_USER if uid is None else uid)
        with end:
            child = self._child(end, pid)
            try:
                if not is_readable(end, _EXEC_SECONDS):
                    raise OSError(errno.ETIMEDOUT, f"its file was not read in {_EXEC_SECONDS:g} s")
                if failure := end.recv(wire.DATAGRAM_BYTES):
                    wire.parse_answer(failure)
            except OSError as exc:
                child.kill()
                child.reap()
                raise OSError(exc.errno, os.strerror(exc.errno or 0)) from None
        return child

    def _child(self, end: socket.socket, pid: int) -> Child:
        """Return the process that sends its pid to `end`.  Raises OSError."""
        if not self._has_answer(end, pid, _STARTS * self._deadline_seconds):
            raise OSError(errno.ETIMEDOUT, "the inspector started no process in time")
        if not (answer := end.recv(wire.DATAGRAM_BYTES)):
            raise OSError(errno.EPIPE, "the inspector died when it started a process")
        started, _ = wire.parse_answer(answer)
        return Child(started, os.pidfd_open(started))

    # -- its process -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process.  Raises UnusablePath if it cannot be started."""
        try:
            with self._lock:
                self._open()
        except OSError as exc:
            raise UnusablePath(f"the inspector {self._program} cannot be started: {exc.strerror}") from None

    def close(self) -> None:
        """End the process, if it runs.  A later request starts it again."""
        with self._lock:
            self._end()

    @property
    def pid(self) -> int:
        """The pid of its process; 0 if it does not run."""
        process = self._process
        return process.pid if process else 0

    def _open(self) -> InspectorProcess:
        """Return the process, started if needed; with the lock held.  Raises OSError."""
        if self._process is None:
            self._process = inspector_process.start(self._program, "--fd", self._bare)
        return self._process

    def _end(self) -> None:
        """End the process, with the lock held.  Its children continue until their own deadlines."""
        if self._process is not None:
            self._process.kill()
            self._process.reap()
            self._process = None

    def _replace(self, pid: int) -> None:
        """Replace the process, unless another thread has."""
        with self._lock:
            if self.pid == pid:
                log.error("inspector.replaced", pid=pid, why="it did not answer")
                self._end()

    # -- requests --------------------------------------------------------------------------------------------------------

    def _send(
        self, question: Question, descriptors: Sequence[int] = (), uid: int | None = None, deadlines: int = 1
    ) -> tuple[socket.socket, int]:
        """Send a question; return the socket for the answer, and the inspector's pid.  Raises OSError."""
        deadline_ms = max(1, int(deadlines * self._deadline_seconds * 1000))
        if uid is None:
            uid = self.share_of(question.pid) if question.pid else 0
        request = wire.pack_question(question, uid, deadline_ms, os.getpid())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                return ours, self._pass(request, [theirs.fileno(), *descriptors])
            except BaseException:
                ours.close()
                raise

    def _pass(self, request: bytes, descriptors: list[int]) -> int:
        """Pass the request to the inspector, or to a new one if it has died.  Returns its pid.  Raises OSError."""
        with self._lock:
            for _ in range(2):
                try:
                    process = self._open()
                    socket.send_fds(process.requests, [request], descriptors)
                    return process.pid
                except (BrokenPipeError, ConnectionResetError):
                    log.error("inspector.replaced", pid=self.pid, why="it died")
                    self._end()
        raise OSError(errno.EPIPE, "the inspector dies when it is asked")

    async def _ask(self, question: Question, uid: int | None = None, deadlines: int = 1) -> tuple[bytes, list[int]]:
        """Ask, and return payload and descriptors.  Raises OSError, Unreadable.

        uid: the user against whom it counts; None: that of the process.  deadlines: how many times the deadline it may take.
        """
        end, pid = self._send(question, uid=uid, deadlines=deadlines)
        with end:
            with trio.move_on_after(deadlines * self._deadline_seconds + _SLACK_SECONDS):
                await until_readable(end)
                return receive(end, question.pid)
            if not await self._answers(pid):
                self._replace(pid)
        raise overdue(question.pid)

    async def _answers(self, pid: int) -> bool:
        with suppress(OSError):
            end, asked = self._send(Question(InspectorOp.PING))
            with end, trio.move_on_after(_PING_SECONDS):
                if asked == pid:
                    await until_readable(end)
                return True
        return False

    def _ask_now(self, question: Question, descriptors: Sequence[int] = ()) -> tuple[bytes, list[int]]:
        """Ask, blocking, and return payload and descriptors.  Raises OSError, Unreadable."""
        end, pid = self._send(question, descriptors)
        with end:
            if self._has_answer(end, pid, self._deadline_seconds):
                return receive(end, question.pid)
        raise overdue(question.pid)

    def _has_answer(self, end: socket.socket, pid: int, seconds: float) -> bool:
        """Wait for an answer; if none comes, replace the inspector unless it answers others.  pid: the inspector's."""
        if is_readable(end, seconds + _SLACK_SECONDS):
            return True
        if not self._answers_now(pid):
            self._replace(pid)
        return False

    def _answers_now(self, pid: int) -> bool:
        with suppress(OSError):
            end, asked = self._send(Question(InspectorOp.PING))
            with end:
                return asked != pid or is_readable(end, _PING_SECONDS)
        return False
