"""What mpsd answers about services.  Their words: mpsd's docs/services.md."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Enlisted:
    """environment: what has to be in the environment before CUDA begins."""

    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a member shall do now.  order: "standby", "serve", "yield" or "leave".

    serial: grows with each change.  generation: of its term where it shall serve or yield, else the arena's.  state_serial: 0
    while no forward state is kept.  why: for people.  commit: the number of the arena's last one.
    """

    serial: int
    order: str
    generation: int
    layout_hash: str
    state_serial: int
    writer_pid: int | None
    why: str = ""
    commit: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """standbys: besides the active.  sm_percent, memory_bytes: what its starter reserves for each member; None: nothing.
    heartbeat_seconds: an active whose forward state stands still for so long is silent; 0: never.  until_done: nobody follows
    an active that stops of its own accord."""

    standbys: int
    sm_percent: float | None
    memory_bytes: int | None
    heartbeat_seconds: float
    until_done: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a service.  standing: "warming", "ready", "faulted" or "silent".  is_apart: no other member is in its fault
    domain.  since_at: when it joined."""

    pid: int
    start_time: int
    domain: str
    rank: int
    standing: str
    is_writer: bool
    is_apart: bool
    since_at: float


@dataclass(frozen=True, slots=True)
class Promotion:
    """cause: "first", "fault", "ended", "silent", "asked" or "failed".  detect_ms: from what happened to mpsd's decision;
    fence_ms: until the one before was fenced; promote_ms: until the new one said that it serves.  None: not known, or nothing
    to do."""

    at: float
    cause: str
    from_pid: int | None
    to_pid: int
    generation: int
    detect_ms: float | None = None
    fence_ms: float | None = None
    promote_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The memory and the forward state of a service were lost, so that `pid` began anew, in this generation."""

    at: float
    generation: int
    pid: int
    why: str


@dataclass(frozen=True, slots=True)
class Service:
    """An arena with processes that can serve it.  phase: "idle", "promoting", "serving", "yielding" or "fencing".

    id: the arena's.  writer_pid: also while it is being fenced.  revision: grows with each change.  promotions: since mpsd
    began.  protection: empty, or why a fault would cost the service more than a moment; or that nobody serves, and why.
    losses: how often a member had to begin anew since mpsd began, with nothing of what was there.  lost: the last time.
    """

    id: int
    name: str
    owner_uid: int
    gpu: str
    phase: str
    generation: int
    writer_pid: int | None
    revision: int
    settings: ServiceSettings
    members: tuple[Member, ...]
    promotions: int
    last: Promotion | None
    protection: str = ""
    losses: int = 0
    lost: Loss | None = None


@dataclass(frozen=True, slots=True)
class HandedOver:
    from_pid: int
    to_pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StateKept:
    """state_serial: counts the forward states that were kept with the arena."""

    state_serial: int


@dataclass(frozen=True, slots=True)
class KeptState:
    """generation: of the writer whose state it is.  fd: a memory file, for whoever asked to close; None where none is kept."""

    state_serial: int
    generation: int
    fd: int | None = None
