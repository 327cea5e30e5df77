"""The values in mpsd's answers about services.  The terms: mpsd's docs/services.md."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Enlisted:
    """environment: the variables that a member must set before CUDA begins."""

    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Instruction:
    """The current order to a member.  order: "standby", "serve", "yield" or "leave".

    serial: grows with each change.  generation: of the member's term with "serve" and "yield", else the arena's.
    state_serial: 0 while mpsd keeps no forward state.  why: for people.  commit: the number of the arena's last commit.
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
    """The settings of a service.  standbys: their number, without the active.  sm_percent, memory_bytes: the starter's
    reservation for each member; None: none.  heartbeat_seconds: mpsd treats an active as silent after this time without a
    publish; 0: never.  until_done: an active that stops unasked has done the work, and mpsd promotes no standby after it."""

    standbys: int
    sm_percent: float | None
    memory_bytes: int | None
    heartbeat_seconds: float
    until_done: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a service.  standing: "warming", "ready", "faulted" or "silent".  is_apart: it is the only member in its
    fault domain.  since_at: when it joined."""

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
    """A promotion.  cause: "first", "fault", "ended", "silent", "asked" or "failed".  detect_ms: from the cause to mpsd's
    decision; fence_ms: until the previous active was fenced; promote_ms: until the new active reported that it serves.  None:
    unknown, or the step was not needed."""

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
    """A loss of a service's memory and forward state; `pid` started from the beginning, in this generation."""

    at: float
    generation: int
    pid: int
    why: str


@dataclass(frozen=True, slots=True)
class Service:
    """An arena with processes that can serve it.  phase: "idle", "promoting", "serving", "yielding" or "fencing".

    id: of the arena.  writer_pid: stays set while the writer is being fenced.  revision: grows with each change.  promotions:
    number since mpsd's start.  protection: empty, or why a fault would interrupt the service for more than a moment, or why
    the service is unserved.  losses: number of losses of memory and state since mpsd's start.  lost: the last one.
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
    """state_serial: the number of forward states that mpsd has kept with the arena so far."""

    state_serial: int


@dataclass(frozen=True, slots=True)
class KeptState:
    """The forward state that mpsd keeps.  generation: of the writer that made it.  fd: a memory file, which the caller closes;
    None if mpsd keeps no state."""

    state_serial: int
    generation: int
    fd: int | None = None
