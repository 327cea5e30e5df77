"""Services: an arena with processes that can serve it: one that writes it, and standbys that could take over.

Frozen values, no I/O, no clock.  Times are seconds since the epoch unless they say otherwise.  Who is promoted when is decided
in policy/succession.py.  Prose: docs/services.md.
"""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.model import ProcessId
from mpsd.policy.succession_words import Phase, Standing


class Order(StrEnum):
    """What a member shall do now."""

    STANDBY = "standby"  # keep warm
    SERVE = "serve"  # it is the arena's writer, of the generation that comes with it
    YIELD = "yield"  # stop writing, and say so
    LEAVE = "leave"  # it is fenced, or a fault has cost it its context: it has to end, and may come again


class Cause(StrEnum):
    """Why a member was promoted."""

    FIRST = "first"  # nobody served
    FAULT = "fault"
    ENDED = "ended"  # the one before did
    SILENT = "silent"
    ASKED = "asked"  # a handover
    FAILED = "failed"  # the one before said so, or did not take over in time


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a member is told (service.follow).  serial: grows with each change of anything in here.  generation: of its term
    where it shall serve or yield, else the arena's.  state_serial: 0 while no forward state is kept.  why: for people.
    commit: the number of the arena's last one: whoever takes over has mapped that."""

    serial: int
    order: Order
    generation: int
    layout_hash: str
    state_serial: int
    writer: ProcessId | None
    why: str = ""
    commit: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What its owner wants.  standbys: besides the active.  sm_percent, memory_bytes: what the starter reserves for each
    member; None: nothing.  heartbeat_seconds: an active whose forward state stands still for so long is silent; 0: never.
    until_done: nobody follows an active that stops of its own accord; mpsd forgets that when it ends."""

    standbys: int = 1
    sm_percent: float | None = None
    memory_bytes: int | None = None
    heartbeat_seconds: float = 0.0
    until_done: bool = False


@dataclass(frozen=True, slots=True)
class MemberView:
    """A process of a service.  is_apart: no other member is in its fault domain.  since_at: when it joined."""

    process: ProcessId
    domain: str
    rank: int
    standing: Standing
    is_writer: bool
    is_apart: bool
    since_at: float


@dataclass(frozen=True, slots=True)
class Promotion:
    """One that happened.  detect_ms: from what happened, where that is known, to mpsd's decision; fence_ms: until the one
    before was fenced; promote_ms: until the new one said that it serves.  None: not known, or there was nothing to do."""

    at: float
    cause: Cause
    from_pid: int | None
    to_pid: int
    generation: int
    detect_ms: float | None = None
    fence_ms: float | None = None
    promote_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """A member had to begin anew, since the vault and the process that served before it have both ended.

    generation, pid: of the member that began anew.  why: for people."""

    at: float
    generation: int
    pid: int
    why: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    from_pid: int
    to_pid: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServiceView:
    """revision: grows with each change.  protection: empty, or why a fault would cost the service more than a moment;
    or that nobody serves, and why.  losses: how often a member began anew since mpsd began.  lost: the last time."""

    id: int  # the arena's
    name: str
    owner_uid: int
    gpu: str
    phase: Phase
    generation: int
    writer: ProcessId | None
    revision: int
    settings: ServiceSettings
    members: tuple[MemberView, ...]
    promotions: int  # since mpsd began
    last: Promotion | None
    protection: str = ""
    losses: int = 0
    lost: Loss | None = None


def is_unserved(of: ServiceView) -> bool:
    """It has processes, and none of them serves or is told to."""
    return bool(of.members) and of.phase in (Phase.IDLE, Phase.FENCING)
