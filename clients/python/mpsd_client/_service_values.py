"""The results about services.  `make docs` makes this module."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Enlisted:
    """A process that was enlisted."""

    environment: Mapping[str, str]  # variables that have to be set before CUDA begins; empty where mpsd places clients itself


@dataclass(frozen=True, slots=True)
class Instruction:
    """The current order to a member."""

    serial: int  # of the member's task; grows with each change, also across restarts of mpsd
    # "standby": keep warm; "serve": you are the writer of `generation`; "yield": stop writing and report it; "leave": you have
    # to end
    order: str
    generation: int  # of the member's term with serve and yield, else the arena's
    layout_hash: str  # the arena's
    # the number of the arena's last commit: take what is new (`arena.open` with `takes` and `known`) before you serve
    commit: int
    state_serial: int  # of the forward state that is kept with the arena; 0: none is
    writer_pid: int | None  # the writer of the arena
    why: str  # of the order, for people
    # the service moves to another GPU: take images without a pause; with yield take a last one, and report its record
    is_moving: bool


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a service."""

    standbys: int  # their number, without the active
    sm_percent: float | None  # the starter's reservation for each member; None: none
    memory_bytes: int | None  # likewise
    heartbeat_seconds: float  # mpsd treats an active as silent after this time without a publish; 0: never
    until_done: bool  # mpsd promotes no standby after an active that stops unasked: it has done the work
    elastic: str  # whether its share moves by need, and its level at first


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a service."""

    pid: int
    start_time: int
    domain: str  # empty: not known
    rank: int
    standing: str
    is_writer: bool
    is_apart: bool  # no other member is in its domain
    since_at: float  # when it joined


@dataclass(frozen=True, slots=True)
class Promotion:
    """A promotion."""

    at: float
    cause: str
    from_pid: int | None
    to_pid: int
    generation: int
    detect_ms: float | None  # from the cause to mpsd's decision; None: not known
    fence_ms: float | None  # until the previous active was fenced; None: not known, or not needed
    promote_ms: float | None  # until the new active reported that it serves; None: likewise


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of a service's memory and forward state."""

    at: float
    generation: int
    pid: int  # of the member that began anew
    why: str


@dataclass(frozen=True, slots=True)
class ServiceShare:
    """The share of an elastic service."""

    sm_percent: float  # dealt now: the starter's reservation for each member, in place of that of `settings`
    busy: float | None  # the fraction of its time in which the active worked lately; None: not known
    level: str  # "interactive" or "batch": the present one
    why: str  # the last decision, for people
    moved_at: float  # when the share was last changed; 0: not since mpsd was started
    moves: int  # since mpsd was started


@dataclass(frozen=True, slots=True)
class Replica:
    """A copy of a service's arena on another GPU."""

    arena: str  # its name
    gpu: str
    pid: int  # the process that keeps it, and that would serve
    at: float | None  # the moment of the image that it has; None: none yet
    steps: int | None  # how often the active has published since; None: not known
    behind_bytes: int  # what it has still to copy of a newer image
    bound_seconds: float  # the age from which on it is too far behind
    is_behind: bool  # it is


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """The current order to the process that keeps a replica."""

    order: str  # "standby": follow; "serve": your arena has the name of the service now; complete it, and join
    generation: int  # yours; with serve a later one than before
    why: str  # for people
    steps: int | None  # how often the active has published after the record of the replica; None: not known
    has_gpu_failed: bool  # the GPU of the service has: say so in your next call, as a later mpsd does not know
    is_moving: bool  # the service moves to you: look for images often; with `serve`: you have its last barrier


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a service to another GPU."""

    # copying: the active serves, and images follow each other; yielding: it was asked for its last barrier; handing: it has
    # stopped, and the replica takes that barrier over, and serves
    state: str
    from_gpu: str
    to_gpu: str
    from_pid: int  # the active that stops
    to_pid: int  # the process that keeps the replica
    began_at: float
    rounds: int  # images that the replica has copied since
    steps: int | None  # how often the active has published after the record of the replica; None: not known
    behind_bytes: int  # what the replica has still to copy of an image
    seconds: float  # since it began, or until it was over
    pause_ms: float | None  # from the last barrier until the new active reported that it serves; None: not so far
    why: str  # it was cancelled


@dataclass(frozen=True, slots=True)
class Service:
    """An arena with processes that can serve it."""

    id: int  # the arena's
    name: str  # likewise
    owner_uid: int  # likewise
    gpu: str  # likewise
    # idle: no member serves; promoting: a member is to begin; yielding: the writer was asked to yield; fencing: mpsd ends it;
    # moving: it has stopped, and the replica on another GPU is to serve
    phase: str
    generation: int  # of the arena
    writer_pid: int | None  # the writer, also while mpsd fences it
    revision: int  # grows with each change of what is here
    settings: ServiceSettings  # `service.change`
    members: tuple[Member, ...]
    promotions: int  # since mpsd was started
    last: Promotion | None  # the last of them
    # empty, or why a fault would interrupt the service for longer; "no member serves: " and why, if no member serves
    protection: str
    losses: int  # how often a member had to begin anew since mpsd was started, with neither memory nor a forward state
    lost: Loss | None  # the last of them
    share: ServiceShare | None  # None: it is not elastic
    replica: Replica | None  # the one that is behind least; its changes change no `revision`
    move: Move | None  # the last one since mpsd was started; `steps`, `behind_bytes` and `seconds` change no `revision`


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A handover."""

    from_pid: int  # the previous active
    to_pid: int | None  # the new active; None: the active has left, and no standby was ready
    seconds: float  # how long it took
