"""Children: processes that are members, or will be, each with a process group, a reservation and a place for its output."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from mpsd_client import values

from mpsctl.starter import scribe
from mpsctl.starter.groups import Process, groups
from mpsctl.starter.plan import ILL_SECONDS, READY, Make, Own

MOST_LOG_BYTES = 16 << 20  # of a file, of which there are two for each member
MISSED_SECONDS = 60.0  # of starting; who has not joined then may never do so
_TICK_SECONDS = 0.02  # longer than a tick of the clock that start times are told by


@dataclass(slots=True)
class Child:
    """number: the lowest that no other child has.  processes: of its group, and those of it that the service may still name.
    member: what that last said of it.  was_writer: so was it when it was last seen; has_served: ever.  Times are those of
    time.monotonic."""

    number: int
    make: Make
    process: subprocess.Popen[bytes]
    lease_id: int | None
    began_at: float
    began_wall: float
    processes: Set[Process]
    member: values.Member | None = None
    was_writer: bool = False
    was_ready: bool = False  # ever
    has_served: bool = False
    member_pid: int = 0  # as mpsd sees it
    ill_at: float | None = None
    is_stopping: bool = False
    is_left: bool = False  # it could not be ended
    is_missed: bool = False  # it was said that it has not joined
    has_ended: threading.Event = field(default_factory=threading.Event)

    @property
    def pid(self) -> int:
        return self.process.pid

    def look(self, group: Set[Process]) -> None:
        """These are in its process group now.  Who leads it, and the member that it was, may have ended a moment ago."""
        leader = {each for each in self.processes if each[0] == self.pid}
        member = {(self.member.pid, self.member.start_time)} if self.member else set()
        self.processes = {*group, *leader, *member}

    def see(self, member: values.Member | None) -> None:
        """What the service says of it now; None: it is no member."""
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
        """Whether it has been there for long and never was a member.  Once."""
        is_late = not self.member_pid and time.monotonic() - self.began_at >= MISSED_SECONDS
        is_news, self.is_missed = is_late and not self.is_missed, self.is_missed or is_late
        return is_news

    def own(self) -> Own:
        """As the planner sees it."""
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
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where children run, and where their output goes.  command: words, not a line for a shell.  terminal: a descriptor, where
    lines go with a prefix if there is no log_dir."""

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
        """Both are called in threads of their own: ended with the status of the process, as subprocess has it; muted where its
        output cannot be written, with the reason.  Raises OSError."""
        environ = dict(self.environ) | {"MPSD_SERVICE": self.name}
        if lease is not None and lease.selector.value is not None:
            environ["MPSD_LEASE"] = lease.selector.value
        writer = self._begin_scribe(number)
        try:
            process = subprocess.Popen(
                self.command, env=environ, stdin=subprocess.DEVNULL, stdout=writer.stdin, stderr=writer.stdin, process_group=0
            )
        finally:
            if writer.stdin is not None:
                writer.stdin.close()  # it ends when the child has
        child = Child(number, make, process, lease.id if lease else None, time.monotonic(), time.time(), set())
        child.look(groups([child.pid])[child.pid])  # nobody has waited for its end yet
        threading.Thread(target=_wait, args=(child, writer, ended), daemon=True).start()
        threading.Thread(target=_hear, args=(child, writer, muted), daemon=True).start()
        time.sleep(_TICK_SECONDS)  # no two begin at the same time
        return child

    def _begin_scribe(self, number: int) -> subprocess.Popen[bytes]:
        """In a session of its own, so that what ends the starter or a terminal does not end it."""
        words, output = ["lines", f"{self.name}-{number}: "], self.terminal
        if (path := self.log(number)) is not None:
            words, output = ["file", path, str(MOST_LOG_BYTES)], subprocess.PIPE
        program = [sys.executable, "-I", "-S", scribe.__file__, *words]
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=output, start_new_session=True)

    def log(self, number: int) -> str | None:
        """None: it is printed."""
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
