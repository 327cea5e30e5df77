"""Decide which processes to end, in which steps, and report the results.

Frozen values and decisions, no I/O; runtime/stopping.py carries them out.  Prose: docs/ending.md, "client.stop".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.model import ProcessId
from mpsd.policy.cgroup_paths import PartKind, parse_path
from mpsd.policy.reach import EVERYTHING, Bound, is_within, reaches

SELF = "self"  # the cgroup or container of the caller


class TargetKind(StrEnum):
    PID = "pid"
    CGROUP = "cgroup"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Target:
    """What to stop.  `value`: a decimal pid; a cgroup path, or a word in one; a container's id; SELF.

    start_time: of a pid; 0: any.
    """

    kind: TargetKind
    value: str
    start_time: int = 0


@dataclass(frozen=True, slots=True)
class Asker:
    """The caller.  uid None: an operator, who may end all processes.  pid 0: not in mpsd's pid namespace.

    bound: which processes it reaches (policy/reach.py).
    """

    uid: int | None
    pid: int
    bound: Bound = EVERYTHING

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


@dataclass(frozen=True, slots=True)
class Manner:
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


@dataclass(frozen=True, slots=True)
class Stopped:
    """The steps taken with one process.  why: the reason why it was left or still lives; empty: it has ended."""

    process: ProcessId
    domain: str | None
    steps: tuple[Step, ...]
    why: str = ""

    @property
    def has_ended(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a stop.  others: how many clients of the target belong to other users, and were not touched."""

    stopped: Sequence[Stopped]
    others: int = 0


def plan(manner: Manner, is_client: bool) -> tuple[Step, ...]:
    """Return the steps for a process, if none fails.  A process without GPU work gets only signals.

    | way | a client | steps; those in brackets with a grace |
    |---|---|---|
    | either | no | (SIGTERM) SIGKILL |
    | terminate | yes | TERMINATE (SIGTERM) SIGKILL |
    | drain | yes | FREEZE DRAIN THAW TERMINATE (SIGTERM) SIGKILL |
    """
    wanted = {Step.SIGKILL}
    if is_client:
        wanted |= {Step.TERMINATE}
    if is_client and manner.way is Way.DRAIN:
        wanted |= {Step.FREEZE, Step.DRAIN, Step.THAW}
    if manner.grace_seconds:
        wanted |= {Step.SIGTERM}
    return tuple(step for step in Step if step in wanted)


def why_not_kill(refusals: Sequence[str], manner: Manner) -> str:
    """Return why mpsd must not signal the client, else nothing.  `refusals`: why servers did not end its GPU work."""
    if manner.force or not refusals:
        return ""
    return f"its GPU work was not ended ({'; '.join(refusals)}): a signal could end its co-runners; `force` sends it"


def branch(paths: Iterable[str], target: Target, asker: Asker) -> str | None:
    """Return the target's own directory among these paths of a process; None if the process is not in it.

    A word that a process inside could have chosen counts only for the caller's own processes (policy/cgroup_paths.py).
    """
    for path in paths:
        if target.value.startswith("/"):
            top = target.value.rstrip("/")
            if top and (path == top or path.startswith(f"{top}/")):
                return top
        elif depths := list(_depths(path, target, asker)):
            return "/" + "/".join(path.strip("/").split("/")[: max(depths)])
    return None


def container_of(paths: Iterable[str]) -> str | None:
    """Return the id of the innermost container that these paths of a process name."""
    found = [part for path in paths for part in parse_path(path) if part.kind is PartKind.CONTAINER]
    return max(found, key=lambda part: part.depth).identifier if found else None


def territory(paths: Iterable[str]) -> list[str]:
    """Return for each path of a process the directory of the innermost container that it names, else the path itself."""
    found = []
    for path in paths:
        depths = [part.depth for part in parse_path(path) if part.kind is PartKind.CONTAINER]
        found.append("/" + "/".join(path.strip("/").split("/")[: max(depths)]) if depths else path)
    return found


def _depths(path: str, target: Target, asker: Asker) -> Iterator[int]:
    for part in parse_path(path):
        is_of_kind = target.kind is TargetKind.CGROUP or part.kind is PartKind.CONTAINER
        is_trusted = asker.uid is not None or not part.is_chosen_inside
        if is_of_kind and is_trusted and target.value in part.words():
            yield part.depth
