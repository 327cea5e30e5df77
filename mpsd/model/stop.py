"""Stopping clients: which processes, how, by which steps, with which result.

Frozen values; stop/rules.py decides and stop/stopper.py carries it out.  Prose: docs/ending.md, "client.stop".
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from mpsd.model.process import ProcessId
from mpsd.model.reach import EVERYTHING, Bound, is_within, reaches

SELF = "self"  # the cgroup or container of the caller


class TargetKind(StrEnum):
    PID = "pid"
    CGROUP = "cgroup"
    CONTAINER = "container"


class Target(Struct, frozen=True):
    """What to stop.  `value`: a decimal pid; a cgroup path, or a word in one; a container's id; SELF.

    start_time: of a pid; 0: any.
    """

    kind: TargetKind
    value: str
    start_time: int = 0


class Asker(Struct, frozen=True):
    """The caller.  uid None: an operator, who may end all processes.  pid 0: not in mpsd's pid namespace.

    bound: which processes it reaches (model/reach.py).  is_mpsd: it is mpsd, which ends a user's process without a request.
    """

    uid: int | None
    pid: int
    bound: Bound = EVERYTHING
    is_mpsd: bool = False

    def may_end(self, owner_uid: int | None, namespaces: tuple[int, ...]) -> bool:
        """Return whether the caller may end a process of this user in these pid namespaces."""
        return self.uid is None or (self.uid == owner_uid and reaches(self.bound, namespaces))

    def may_name(self, directory: str, own: Sequence[str]) -> bool:
        """Return whether the caller may stop the processes in this cgroup.  own: its own `territory`."""
        return self.uid is None or self.bound is EVERYTHING or is_within(directory, own)

    def may_freeze(self, directory: str, own: Sequence[str]) -> bool:
        """Return whether mpsd may freeze the whole cgroup: other users' processes may enter one above the caller's own."""
        return self.uid is None or is_within(directory, own)


class Way(StrEnum):
    """How GPU work ends before the process does; both were measured to spare co-runners (docs/ending.md)."""

    TERMINATE = "terminate"
    DRAIN = "drain"


class Manner(Struct, frozen=True):
    """How to end processes.  force: kill also a client whose GPU work could not be ended."""

    way: Way = Way.TERMINATE
    grace_seconds: float = 0.0
    drain_seconds: float = 0.0
    force: bool = False


class Step(StrEnum):
    """The steps, in their order."""

    FREEZE = "freeze"
    DRAIN = "drain"
    THAW = "thaw"  # terminate_client for a frozen process hangs its vendor daemon (measured), and it does not see SIGTERM
    TERMINATE = "terminate"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"


class Stopped(Struct, frozen=True):
    """The steps taken with one process.  why: the reason why it was left or still lives; empty: it has ended."""

    process: ProcessId
    domain: str | None
    steps: tuple[Step, ...]
    why: str = ""

    @property
    def has_ended(self) -> bool:
        return not self.why


class Report(Struct, frozen=True):
    """The result of a stop.  others: how many clients of the target belong to other users, and were not touched."""

    stopped: Sequence[Stopped]
    others: int = 0
