"""Children: processes that are or will be members, each with its process group, its reservation and its log."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from mpsd_client import values

from mpsctl.starter import log_writer
from mpsctl.starter.groups import Process, groups
from mpsctl.starter.plan import ILL_SECONDS, READY, Make, Own

MOST_LOG_BYTES = 16 << 20  # size of a log file; each member has at most two
MISSED_SECONDS = 60.0  # after its start; a child that has not joined by then may never do so
_TICK_SECONDS = 0.02  # longer than a tick of the clock of process start times


@dataclass(slots=True)
class Child:
    """A process of the starter.  number: the lowest free one.  processes: those in its process group, and ended
    ones that mpsd may still report.  member: mpsd's last report about it.  was_writer: whether it was the writer in the last
    report that named it; has_served: whether it was ever the writer.  began_at and ill_at are times of time.monotonic."""

    number: int
    make: Make
    process: subprocess.Popen[bytes]
    lease_id: int | None
    began_at: float
    began_wall: float
    processes: Set[Process]
    member: values.Member | None = None
    was_writer: bool = False
    was_ready: bool = False  # at any time
    has_served: bool = False
    member_pid: int = 0  # in mpsd's pid namespace
    ill_at: float | None = None
    is_stopping: bool = False
    is_left: bool = False  # the starter could not end it
    is_missed: bool = False  # the starter has reported that it has not joined
    has_ended: threading.Event = field(default_factory=threading.Event)

    @property
    def pid(self) -> int:
        return self.process.pid

    def look(self, group: Set[Process]) -> None:
        """Record the processes in its process group.  The leader and the last known member stay in the set, since mpsd may
        still report them for a moment after their end."""
        leader = {each for each in self.processes if each[0] == self.pid}
        member = {(self.member.pid, self.member.start_time)} if self.member else set()
        self.processes = {*group, *leader, *member}

    def see(self, member: values.Member | None) -> None:
        """Record mpsd's report of the child; None: it is not a member."""
        self.member = member
        if member is not None:
            self.was_writer = member.is_writer
            self.member_pid = member.pid
            self.was_ready = self.was_ready or member.standing == READY
            self.has_served = self.has_served or member.is_writer
            if member.standing not in ILL_SECONDS:
                self.ill_at = None
            elif self.ill_at is None:
                self.ill_at = time.monotonic()

    def miss(self) -> bool:
        """Return True once, when the child has run for MISSED_SECONDS and has never been a member."""
        is_late = not self.member_pid and time.monotonic() - self.began_at >= MISSED_SECONDS
        is_news, self.is_missed = is_late and not self.is_missed, self.is_missed or is_late
        return is_news

    def own(self) -> Own:
        """Return the child in the form that the planner takes."""
        member = self.member
        return Own(
            self.number,
            self.make,
            member.standing if member else "",
            self.was_writer,
            self.is_stopping,
            member.since_at if member else self.began_wall,
            0.0 if self.ill_at is None else time.monotonic() - self.ill_at,
            self.is_left,
            bool(self.member_pid),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The command, the environment and the output of children.  command: an argument vector, not a shell command.  terminal:
    the descriptor for output lines, each with a prefix, if log_dir is None."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log_dir: str | None
    terminal: int

    def begin(
        self,
        number: int,
        make: Make,
        lease: values.Lease | None,
        ended: Callable[[Child, int], None],
        muted: Callable[[Child, str], None],
    ) -> Child:
        """Start a child.  Two threads call the callbacks: `ended` with the exit status as subprocess has it; `muted` with the
        reason if the child's output cannot be written.  Raises OSError."""
        environ = dict(self.environ) | {"MPSD_SERVICE": self.name}
        if lease is not None and lease.selector.value is not None:
            environ["MPSD_LEASE"] = lease.selector.value
        if make.gpu:
            environ["CUDA_VISIBLE_DEVICES"] = make.gpu
        writer = self._begin_log_writer(number)
        try:
            process = subprocess.Popen(
                self.command, env=environ, stdin=subprocess.DEVNULL, stdout=writer.stdin, stderr=writer.stdin, process_group=0
            )
        finally:
            if writer.stdin is not None:
                writer.stdin.close()  # so that it ends when the child does
        child = Child(number, make, process, lease.id if lease else None, time.monotonic(), time.time(), set())
        child.look(groups([child.pid])[child.pid])  # not reaped yet, so /proc still has it
        try:
            threading.Thread(target=_hear, args=(child, writer, muted), daemon=True).start()
            threading.Thread(target=_wait, args=(child, writer, ended), daemon=True).start()
        except RuntimeError as exc:  # this process may start no more threads, without which it would not see the child's end
            os.killpg(child.pid, signal.SIGKILL)  # it has just started, without work on a GPU
            process.wait()
            raise OSError(errno.EAGAIN, str(exc)) from None
        time.sleep(_TICK_SECONDS)  # so that no two children have the same start time
        return child

    def _begin_log_writer(self, number: int) -> subprocess.Popen[bytes]:
        """Start the process that writes the child's output, in a new session, so that it survives the starter and the
        terminal."""
        words, output = ["lines", f"{self.name}-{number}: "], self.terminal
        if (path := self.log(number)) is not None:
            words, output = ["file", path, str(MOST_LOG_BYTES)], subprocess.PIPE
        program = [sys.executable, "-I", "-S", log_writer.__file__, *words]
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=output, start_new_session=True)

    def log(self, number: int) -> str | None:
        """Return the path of the child's log file; None if its output is printed."""
        return None if self.log_dir is None else os.path.join(self.log_dir, f"{self.name}-{number}.log")


def _wait(child: Child, writer: subprocess.Popen[bytes], ended: Callable[[Child, int], None]) -> None:
    status = child.process.wait()
    child.has_ended.set()
    ended(child, status)
    writer.wait()


def _hear(child: Child, writer: subprocess.Popen[bytes], muted: Callable[[Child, str], None]) -> None:
    if writer.stdout is not None:
        with writer.stdout:
            for line in writer.stdout:
                muted(child, line.decode().strip())


def free_number(children: Mapping[int, Child]) -> int:
    return next(number for number in range(1, len(children) + 2) if number not in children)
