"""Recognise the parts of a cgroup path: a container, a pod, a Slurm job, a systemd unit.

Knows how Docker, containerd, CRI-O, podman, Kubernetes, Slurm and systemd name things, but reads no /proc.
Prose: docs/leases.md, "Who a client is".
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

SHORT_ID = 12  # characters of a container id that people use
MOST_DEPTH = 64  # of the directories that are read: users may make cgroups as deep as they like


class PartKind(StrEnum):
    """In the order in which they describe a process, the best first."""

    CONTAINER = "container"
    STEP = "step"
    JOB = "job"
    POD = "pod"
    UNIT = "unit"
    OTHER = "other"


class Part(Struct, frozen=True):
    """One directory of a path.

    depth: 1 for the first.  identifier: the id of the container, pod or job; the directory's name for OTHER.  is_chosen_inside:
    a process in the container, or in the user's own service manager above it, chose the name, so it proves nothing to other
    users.
    """

    name: str
    depth: int
    kind: PartKind
    identifier: str
    is_chosen_inside: bool

    def words(self) -> Iterator[str]:
        """Yield the names by which a lease may select it."""
        yield self.name
        if self.identifier != self.name:
            yield self.identifier
        if self.kind is PartKind.CONTAINER and len(self.identifier) > SHORT_ID:
            yield self.identifier[:SHORT_ID]


_HEX_ID = "[0-9a-f]{64}"
_POD_UID = "[0-9a-f]{8}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{12}|[0-9a-f]{32}"  # the latter: static pods

# The name of the runtime before the id and .scope after it, or the bare id (cgroupfs drivers); SLICE:RUNTIME: before it where a
# cgroupfs driver was given a path for systemd (k3s).  A conmon watches a container, and is not one itself.
_SYSTEMD_PATH = re.compile(r"([^:]+\.slice):[a-z-]+:[^:]+")
_CONTAINER = re.compile(rf"(?:[^:]+:[a-z-]+:|(?!.*conmon)[a-z][a-z-]*-)?({_HEX_ID})(?:\.scope)?")
_LXC = re.compile(r"lxc\.payload\.(.+)")
_MACHINE = re.compile(r"machine-(.+)\.scope")  # systemd-nspawn, libvirt
_POD = re.compile(rf"(?:pod|[a-z-]*kubepods(?:-[a-z]+)?-pod)({_POD_UID})(?:\.slice)?")
_SLURM = re.compile(r"slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope")
_JOB = re.compile(r"job_\d+")
_STEP = re.compile(r"step_\w+")
_UNIT = re.compile(r".+\.(?:service|scope|slice)")
_USER_MANAGER = re.compile(r"user@\d+\.service")
# Made by systemd-run, and by a socket with Accept=yes for one connection.
_TRANSIENT_SERVICE = re.compile(r"(?:run-(?:[ru]?[0-9a-f]+|p\d+-i\d+)|.+@\d+-.*)\.service")
_OUTER = (PartKind.POD, PartKind.CONTAINER, PartKind.JOB)
_JOB_NAME_CHARACTERS = 64


def parse_path(path: str) -> tuple[Part, ...]:
    """Return the directories of a path of /proc/PID/cgroup, from the root on."""
    parts: list[Part] = []
    is_inside = False
    job: str | None = None  # "" between Slurm's own directory and that of the job
    for depth, name in enumerate(list(filter(None, path.split("/")))[:MOST_DEPTH], 1):
        if systemd := _SYSTEMD_PATH.fullmatch(name):
            parts.append(Part(systemd[1], depth, *_recognise(systemd[1], job), is_inside))
        kind, identifier = _recognise(name, job)
        parts.append(Part(name, depth, kind, identifier, is_inside))
        is_inside = is_inside or kind is PartKind.CONTAINER or _USER_MANAGER.fullmatch(name) is not None
        if kind is PartKind.JOB:
            job = name
        elif job is None and _SLURM.fullmatch(name):
            job = ""
    return tuple(parts)


def describe(paths: Iterable[str]) -> str:
    """Return for people: a container's id, else a Slurm job's step, a pod, a systemd unit; empty if the paths name none."""
    order = list(PartKind)
    parts = [part for path in paths for part in parse_path(path) if part.kind is not PartKind.OTHER]
    best = min(parts, key=lambda part: (order.index(part.kind), -part.depth), default=None)
    return best.identifier if best else ""


def lasting_name(paths: Iterable[str], job_name: str, program: str) -> str:
    """Return the name that the next start of the same work has too: pod:UID, container:ID, job:NAME:PROGRAM or unit:NAME.

    A restarted container keeps its pod; a job has a new number each time, so its name counts (job_name, empty if not known);
    names of sessions and other scopes are new each time.  A name that was chosen inside a container counts only after that of
    the outer one, so that no container takes another's name.  Empty if no part of the paths has such a name.
    """
    parsed = [parse_path(path) for path in paths]
    for parts in parsed:
        outer = next((part for part in parts if part.kind in _OUTER and not part.is_chosen_inside), None)
        if outer is not None and outer.kind is PartKind.JOB:
            return f"job:{job_name[:_JOB_NAME_CHARACTERS]}:{program}" if job_name else ""
        if outer is not None:
            inner = [part for part in parts if part.kind in _OUTER and part.is_chosen_inside]
            best = min(inner, key=lambda part: (part.kind is not PartKind.POD, -part.depth), default=None)
            return f"{outer.kind.value}:{outer.identifier}" + (f"/{best.identifier}" if best else "")
    units = [part.name for parts in parsed for part in reversed(parts) if _is_lasting_unit(part)]
    return f"unit:{units[0]}" if units else ""


def _is_lasting_unit(part: Part) -> bool:
    if part.kind is not PartKind.UNIT or part.is_chosen_inside or not part.name.endswith(".service"):
        return False
    return not (_USER_MANAGER.fullmatch(part.name) or _TRANSIENT_SERVICE.fullmatch(part.name))


def _recognise(name: str, job: str | None) -> tuple[PartKind, str]:
    if found := _CONTAINER.fullmatch(name) or _LXC.fullmatch(name) or _MACHINE.fullmatch(name):
        return PartKind.CONTAINER, found[1]
    if found := _POD.fullmatch(name):
        return PartKind.POD, found[1].replace("_", "-")
    if job is not None and _JOB.fullmatch(name):
        return PartKind.JOB, name
    if job and _STEP.fullmatch(name):
        return PartKind.STEP, f"{job}/{name}"
    if _UNIT.fullmatch(name):
        return PartKind.UNIT, name
    return PartKind.OTHER, name
