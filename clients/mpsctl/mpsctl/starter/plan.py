"""Decide what a starter does next: which members to start, stop, or hand over to.  Values in, actions out; no clock.

The planner uses the current situation only and keeps no history, so that after a failure it simply plans again.

In a *rolling change* the starter replaces the members whose settings differ from those that a new member would get:

    start one more ──ready──▶ hand over to it ──▶ stop an old one ──▶ start one ──ready──▶ stop an old one ... until none is old

The starter stops an old member that could serve only if the desired number of standbys is ready without it.  If the GPU has no
room for one extra member (`may_surge` is false) and no ending member is about to free some, the starter stops an old standby
first, and the service has one standby fewer for a while.  Surplus members are stopped before anything else.

A *replica* is a child that sees another GPU than the service's.  When the service moves to that GPU, it is a member; the
members of before are stopped, and a new replica is started where they were.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

READY, FAULTED, SILENT = "ready", "faulted", "silent"  # states of a member
SERVING = "serving"  # phase of a service
_ON_THE_WAY = ("promoting", "yielding", "fencing", "moving")  # phases in which the next active is not decided yet
_TOO_MANY = "fewer standbys are wanted"
ILL_SECONDS = {FAULTED: 10.0, SILENT: 30.0}  # it may end by itself, or recover


@dataclass(frozen=True, slots=True)
class Make:
    """The settings of a member.  sm_percent, memory_bytes: its reservation.  round: the number of restarts by SIGHUP before
    its start.  gpu: the UUID of the only GPU that it sees; empty: it sees those of the starter."""

    sm_percent: float | None = None
    memory_bytes: int | None = None
    round: int = 0
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """A child of this starter.  standing: its state as a member; empty until it joins.  since_at: when it joined.
    ill_seconds: for how long its state has been one of ILL_SECONDS.  is_left: the starter could not end it.  has_joined: it was
    a member at any time."""

    number: int
    make: Make = Make()
    standing: str = ""
    is_writer: bool = False
    is_stopping: bool = False
    since_at: float = 0.0
    ill_seconds: float = 0.0
    is_left: bool = False
    has_joined: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """A member that is not a child of this starter."""

    standing: str = READY
    is_writer: bool = False
    since_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of the planner.  standbys: the desired number.  phase: of the service; empty until it exists.  is_ending: all
    children are to end.  may_start: a start may succeed now.  may_surge: one extra member may fit on the GPU.  may_make_way: a
    successor may fit once its predecessor has ended.  is_busy: a handover is in progress, was refused just now, or has to wait
    until mpsd reports the service again.  replica: the wanted one, and may_start_replica: its start may succeed now."""

    standbys: int
    make: Make
    own: tuple[Own, ...] = ()
    others: tuple[Other, ...] = ()
    phase: str = ""
    is_ending: bool = False
    may_start: bool = True
    may_surge: bool = True
    may_make_way: bool = True
    is_busy: bool = False
    replica: Make | None = None
    may_start_replica: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    is_replica: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class MakeWay:
    """Stop this member if that makes room for its successor.  An active yields first."""

    number: int


@dataclass(frozen=True, slots=True)
class HandOver:
    number: int


Deed = Start | Stop | MakeWay | HandOver


def plan(of: Situation) -> tuple[Deed, ...]:
    """Return the actions to take now, in order.  Later steps follow from calling it again when the situation has changed."""
    if of.is_ending:
        return tuple(_ending(of))
    ill = tuple(Stop(each.number, f"it is {each.standing}") for each in of.own if _is_overdue(each))
    return (*ill, *_members(of), *_replica(of))


def _members(of: Situation) -> Iterator[Deed]:
    old = _old(of)
    if _missing(of) > 0:
        yield from [Start()] * _missing(of) if of.may_start else ()
    elif of.phase not in _ON_THE_WAY:
        yield from _rolling(of, old) if old else _surplus(of)


def is_surge(of: Situation) -> bool:
    """Return whether a member started now would be one more than desired."""
    return _count(of) > of.standbys


def is_one_ending(of: Situation) -> bool:
    """Return whether a child is ending, which will free room."""
    return any(each.is_stopping and not each.is_left for each in of.own)


def _count(of: Situation) -> int:
    """Return the number of members and children that serve, could serve, or will be able to."""
    return len(_alive(of)) + len(_others(of))


def _ending(of: Situation) -> Iterator[Stop]:
    """Stop the standbys first and the active last, so that no standby takes over shortly before its own end."""
    standbys = [each for each in of.own if not each.is_writer]
    for each in standbys or of.own:
        if not each.is_stopping:
            yield Stop(each.number, "the service ends")


def _is_overdue(of: Own) -> bool:
    """Return whether the child has been faulted or silent for too long.  The active is left to mpsd to decide."""
    return not (of.is_stopping or of.is_writer) and of.ill_seconds >= ILL_SECONDS.get(of.standing, float("inf"))


def _alive(of: Situation) -> Sequence[Own]:
    here = (each for each in of.own if each.make.gpu == of.make.gpu)
    return [each for each in here if not each.is_stopping and each.standing != FAULTED]


def _others(of: Situation) -> Sequence[Other]:
    return [each for each in of.others if each.standing != FAULTED]


def _old(of: Situation) -> Sequence[Own]:
    return [each for each in _alive(of) if each.make != of.make]


def _missing(of: Situation) -> int:
    """Return how many members to start; negative: how many to stop.  A rolling change uses one extra member if it fits."""
    return of.standbys + 1 + bool(_old(of) and of.may_surge) - _count(of)


def _ready(of: Situation) -> int:
    """Return the number of standbys that could take over now."""
    return sum(each.standing == READY for each in _standbys(of))


def _standbys(of: Situation) -> list[Own | Other]:
    found: list[Own | Other] = [*_alive(of), *_others(of)]
    return [each for each in found if not each.is_writer]


# -- a rolling change ------------------------------------------------------------------------------------------------------


def _rolling(of: Situation, old: Sequence[Own]) -> Iterator[Deed]:
    """Return the next step of a rolling change in which no member has to be started now."""
    made = [each for each in _alive(of) if each.make == of.make]
    writer = next((each for each in old if each.is_writer), None)
    next_ = next((each for each in made if each.standing == READY and not each.is_writer), None)
    if writer is not None and next_ is not None:
        if not of.is_busy:
            yield HandOver(next_.number)
        return
    standbys = sorted((each for each in old if not each.is_writer), key=lambda each: (each.standing == READY, each.number))
    if not made and _count(of) > of.standbys + 1:
        yield from _give_up_one(of, standbys, _TOO_MANY)
    elif of.may_surge:
        yield from _give_up_one(of, standbys if writer is None else (), "it is replaced")
    elif of.may_make_way and not is_one_ending(of) and all(each.standing == READY for each in made):  # one at a time
        yield from (MakeWay(each.number) for each in (standbys or old)[:1])


def _give_up_one(of: Situation, standbys: Sequence[Own], why: str) -> Iterator[Stop]:
    for each in standbys[:1]:
        if _ready(of) - (each.standing == READY) >= of.standbys:
            yield Stop(each.number, why)


# -- too many --------------------------------------------------------------------------------------------------------------


def _surplus(of: Situation) -> Iterator[Stop]:
    """Stop surplus standbys, the newest first.  All starters of a service choose the same members; each stops its own."""
    too_many = -_missing(of)
    if too_many <= 0 or of.phase != SERVING:
        return
    last_first = sorted(_standbys(of), key=lambda each: (each.standing == READY, bool(each.standing), -each.since_at))
    for each in last_first[:too_many]:
        if isinstance(each, Own):
            yield Stop(each.number, _TOO_MANY)


# -- on another GPU --------------------------------------------------------------------------------------------------------


def _replica(of: Situation) -> Iterator[Deed]:
    """Keep one replica, and stop the children that the service has left behind on another GPU."""
    away = [each for each in of.own if each.make.gpu != of.make.gpu and not each.is_left]
    kept = next((each for each in away if not (each.has_joined or each.is_stopping)), None)
    for each in away:
        if each is not kept and not each.is_stopping and not _is_overdue(each):
            yield Stop(each.number, "the service has moved to another GPU")
    if of.phase != SERVING or of.replica is None:
        return
    if kept is not None and kept.make != of.replica and not _old(of):
        yield Stop(kept.number, "it is replaced")
    elif not away and of.may_start_replica:
        yield Start(is_replica=True)
