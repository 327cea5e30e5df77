"""Services: an arena with processes that can serve it: one that writes it, and standbys that could take over.

Frozen values, no I/O, no clock.  Times are seconds since the epoch unless stated otherwise.  services/rules/promotion.py
decides when which member is promoted.  Prose: docs/services.md.
"""

from enum import StrEnum

from msgspec import Struct

from mpsd.model.process import ProcessId

MOST_RANK = 1000


class Phase(StrEnum):
    """The phases of a service."""

    IDLE = "idle"  # no member writes
    PROMOTING = "promoting"  # the writer is to begin
    SERVING = "serving"
    YIELDING = "yielding"  # the writer was asked to yield
    FENCING = "fencing"  # mpsd ends the writer
    MOVING = "moving"  # the writer has stopped after its last barrier, and the replica on another GPU is to serve


class MemberState(StrEnum):
    """The states of a member."""

    WARMING = "warming"
    READY = "ready"
    FAULTED = "faulted"  # for good: its context is lost
    SILENT = "silent"


class Order(StrEnum):
    """What a member has to do now."""

    STANDBY = "standby"  # stay ready to take over
    SERVE = "serve"  # it is the arena's writer, of the generation in the instruction
    YIELD = "yield"  # stop writing, and report it
    LEAVE = "leave"  # it is fenced, was asked to, or a fault has destroyed its context: it has to end, and may be started again


class Cause(StrEnum):
    """The cause of a promotion."""

    FIRST = "first"  # the service had no writer
    FAULT = "fault"
    ENDED = "ended"  # the previous writer ended
    SILENT = "silent"
    ASKED = "asked"  # a handover
    CONTAINED = "contained"  # a handover, because an exception was contained in the domain of the previous writer
    FAILED = "failed"  # the previous writer reported a failure, or did not take over in time


class Elasticity(StrEnum):
    """Whether the share of a service moves by need, and the level at which it starts."""

    OFF = "off"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class MoveState(StrEnum):
    """The states of a move to another GPU."""

    COPYING = "copying"  # images follow each other without a pause, and the replica copies them
    YIELDING = "yielding"  # the active was asked for its last barrier
    HANDING = "handing"  # it has stopped, and the replica copies that barrier, and serves
    DONE = "done"
    CANCELLED = "cancelled"


class Instruction(Struct, frozen=True):
    """The instruction for a member (service.follow).  serial: grows with each change of any field.

    generation: the term's if it has to serve or yield, else the arena's.  state_serial: 0 while no forward state is kept.
    why: for people.  commit: the number of the arena's last commit, which a member that takes over must have mapped.
    is_moving: the service moves to another GPU: the writer takes images without a pause and, if it has to yield, a last one.
    """

    serial: int
    order: Order
    generation: int
    layout_hash: str
    state_serial: int
    writer: ProcessId | None
    why: str = ""
    commit: int = 0
    is_moving: bool = False


class LastRecord(Struct, frozen=True):
    """The record at the last barrier of a writer that yields for a move.  why: no image has it; empty: one may have it."""

    generation: int
    sequence: int
    why: str = ""


class ServiceSettings(Struct, frozen=True):
    """The owner's settings.  standbys: in addition to the active.

    sm_percent, memory_bytes: what the starter reserves for each member; None: nothing.  heartbeat_seconds: an active whose
    forward state does not change for so long is silent; 0: never.  until_done: an active that stops without being asked has no
    successor; mpsd forgets this setting when it ends.  elastic: the share moves by need, among its owner's elastic
    services on the GPU.
    """

    standbys: int = 1
    sm_percent: float | None = None
    memory_bytes: int | None = None
    heartbeat_seconds: float = 0.0
    until_done: bool = False
    elastic: Elasticity = Elasticity.OFF


class Share(Struct, frozen=True):
    """What the elastic policy has dealt a service.  sm_percent: for each of its members, instead of what the settings say.

    busy: the fraction of that share that it used lately; None: not known.  level: its present one, "interactive" or "batch".
    why: the last decision, for people.  moved_at: when the share was last changed; 0: never.
    """

    sm_percent: float
    busy: float | None = None
    level: str = "interactive"
    why: str = ""
    moved_at: float = 0.0
    moves: int = 0  # since mpsd began


class Dealt(Struct, frozen=True):
    """The last change of an elastic service's share.  before: the share that its members had until then.

    ticks: when, in clock ticks after boot: a process that started before this has the share that it got earlier.
    """

    sm_percent: float
    before: float
    ticks: int


class MemberView(Struct, frozen=True):
    """A process of a service.  is_apart: no other member is in its fault domain.  since_at: when it joined."""

    process: ProcessId
    domain: str
    rank: int
    standing: MemberState
    is_writer: bool
    is_apart: bool
    since_at: float


class Promotion(Struct, frozen=True):
    """A promotion.  detect_ms: from the cause, if its time is known, to mpsd's decision; fence_ms: until the previous writer
    was fenced; promote_ms: until the new one reported that it serves.  None: not known, or nothing had to be done.
    """

    at: float
    cause: Cause
    from_pid: int | None
    to_pid: int
    generation: int
    detect_ms: float | None = None
    fence_ms: float | None = None
    promote_ms: float | None = None


class Loss(Struct, frozen=True):
    """A member had to start anew, since the vault and the process that served before it have both ended.

    generation, pid: of the member that started anew.  why: for people.
    """

    at: float
    generation: int
    pid: int
    why: str


class HandedOver(Struct, frozen=True):
    from_pid: int
    to_pid: int | None  # None: no member was ready when the active left
    seconds: float


class ReplicaReport(Struct, frozen=True):
    """What the process that keeps a replica knows.  at: the moment of the image that the replica has; None: none yet.

    generation, sequence: of that image's record, 0 without one.  behind_bytes: that it has still to copy from a newer image.
    bound_seconds: a replica that is older is too far behind.  has_gpu_failed: mpsd, perhaps an earlier one, answered so."""

    at: float | None
    generation: int
    sequence: int
    behind_bytes: int
    bound_seconds: float
    has_gpu_failed: bool = False


class ReplicaOrder(Struct, frozen=True):
    """The order to the process that keeps a replica: standby or serve.  steps: publishes that the replica lacks; None: not
    known.  has_gpu_failed: the service's GPU, for the next report.  generation: in which it writes its arena.  is_moving: the
    service moves to this replica, which should look for images often; to serve: it has the last barrier."""

    order: Order
    generation: int
    why: str
    steps: int | None
    has_gpu_failed: bool = False
    is_moving: bool = False


class ReplicaView(Struct, frozen=True):
    """A replica, as of its last report.  arena, gpu: where its copy is."""

    arena: str
    gpu: str
    process: ProcessId
    at: float | None
    steps: int | None
    behind_bytes: int
    bound_seconds: float
    is_behind: bool


class MoveView(Struct, frozen=True):
    """A move to another GPU, under way or over.  rounds: images that the replica has copied since it began.
    steps: publishes that the replica lacks; None: not known.  seconds: since it began, or until it was over.  pause_ms: from
    the last barrier until the new active reported that it serves; None: not so far.  why: it was cancelled.
    """

    state: MoveState
    from_gpu: str
    to_gpu: str
    from_pid: int
    to_pid: int
    began_at: float
    rounds: int = 0
    steps: int | None = None
    behind_bytes: int = 0
    seconds: float = 0.0
    pause_ms: float | None = None
    why: str = ""


class ServiceView(Struct, frozen=True):
    """A service as clients of the API see it.  revision: grows with each change.

    protection: empty, or why a fault would cost the service more than a moment; or why no member serves.  losses: how often a
    member started anew since mpsd began.  lost: the last time.  share: None: it is not elastic.
    """

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
    share: Share | None = None
    replica: ReplicaView | None = None  # changes no revision
    move: MoveView | None = None  # the last one since mpsd began; its counts and times change no revision


def is_unserved(of: ServiceView) -> bool:
    """Return whether the service has members, none of which serves or has the instruction to."""
    return bool(of.members) and of.phase in (Phase.IDLE, Phase.FENCING)
