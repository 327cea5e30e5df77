"""Decide which processes to end and in which steps.  Pure.  Prose: docs/ending.md, "client.stop"."""

from collections.abc import Iterable, Iterator, Sequence

from mpsd.model.cgroup_path import PartKind, parse_path
from mpsd.model.stop import Asker, Manner, Step, Target, TargetKind, Way


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

    A word that a process inside could have chosen counts only for the caller's own processes (model/cgroup_path.py).
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
