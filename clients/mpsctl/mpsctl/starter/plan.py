"""What a starter does next: whom to start, to stop, to hand over to.  Values in, deeds out; no clock.

It looks at what is there, not at what it did before: asked again, it goes on where it was, also after a failure.

A *rolling change* is what it does while some of its members were made in another way than those it would make now:

    start one more ──ready──▶ hand over to it ──▶ stop an old one ──▶ start one ──ready──▶ stop an old one ... until none is old

An old one that could serve is stopped only where as many as are wanted are ready without it.  Where there is no room for one
more (`may_surge` is false), and nobody is ending who makes some, an old standby makes way first, and there is one fewer for a
while.  What is too many goes before anything else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

READY, FAULTED, SILENT = "ready", "faulted", "silent"  # standings
SERVING = "serving"  # of a service
_ON_THE_WAY = ("promoting", "yielding", "fencing")  # it is not known yet who serves
_TOO_MANY = "fewer standbys are wanted"
ILL_SECONDS = {FAULTED: 10.0, SILENT: 30.0}  # it may end by itself, or be heard of again


@dataclass(frozen=True, slots=True)
class Make:
    """How a member is made.  sm_percent, memory_bytes: what is reserved for it.  round: counts restarts that were asked for."""

    sm_percent: float | None = None
    memory_bytes: int | None = None
    round: int = 0


@dataclass(frozen=True, slots=True)
class Own:
    """A child.  standing: of the member that it is; empty while it has not joined.  since_at: when it did.  ill_seconds: for
    how long it has been one of ILL_SECONDS.  is_left: it was to end, and does not."""

    number: int
    make: Make = Make()
    standing: str = ""
    is_writer: bool = False
    is_stopping: bool = False
    since_at: float = 0.0
    ill_seconds: float = 0.0
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """A member that is nobody's child here."""

    standing: str = READY
    is_writer: bool = False
    since_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    """standbys: how many are wanted.  phase: of the service; empty while there is none.  is_ending: all children shall end.
    may_start: one that was started now could come to something.  may_make_way: there would be room for a successor, as far as
    is known.  is_busy: a handover is under way, or was refused just now."""

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


@dataclass(frozen=True, slots=True)
class Start:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class MakeWay:
    """Stop it, if that gives its successor the room that it lacks."""

    number: int


@dataclass(frozen=True, slots=True)
class HandOver:
    number: int


Deed = Start | Stop | MakeWay | HandOver


def plan(of: Situation) -> tuple[Deed, ...]:
    """In order.  Only what can be done at once: it is asked again when something has changed."""
    if of.is_ending:
        return tuple(_ending(of))
    ill = tuple(Stop(each.number, f"it is {each.standing}") for each in of.own if _is_overdue(each))
    old = _old(of)
    if _missing(of) > 0:
        return (*ill, *([Start()] * _missing(of) if of.may_start else ()))
    if of.phase in _ON_THE_WAY:
        return ill
    return (*ill, *(_rolling(of, old) if old else _surplus(of)))


def is_surge(of: Situation) -> bool:
    """Whether one that is started now is one more than is wanted."""
    return _count(of) > of.standbys


def is_one_ending(of: Situation) -> bool:
    """Then there will be more room."""
    return any(each.is_stopping and not each.is_left for each in of.own)


def _count(of: Situation) -> int:
    """Of those who serve, could, or will be able to."""
    return len(_alive(of)) + len(_others(of))


def _ending(of: Situation) -> Iterator[Stop]:
    """The active goes last: nobody takes over for a moment only."""
    standbys = [each for each in of.own if not each.is_writer]
    for each in standbys or of.own:
        if not each.is_stopping:
            yield Stop(each.number, "the service ends")


def _is_overdue(of: Own) -> bool:
    """Of the active, mpsd has to decide."""
    return not (of.is_stopping or of.is_writer) and of.ill_seconds >= ILL_SECONDS.get(of.standing, float("inf"))


def _alive(of: Situation) -> Sequence[Own]:
    return [each for each in of.own if not each.is_stopping and each.standing != FAULTED]


def _others(of: Situation) -> Sequence[Other]:
    return [each for each in of.others if each.standing != FAULTED]


def _old(of: Situation) -> Sequence[Own]:
    return [each for each in _alive(of) if each.make != of.make]


def _missing(of: Situation) -> int:
    """While some are old, there is one more than is wanted, if there is room."""
    return of.standbys + 1 + bool(_old(of) and of.may_surge) - _count(of)


def _ready(of: Situation) -> int:
    """Standbys that could take over now."""
    return sum(each.standing == READY for each in _standbys(of))


def _standbys(of: Situation) -> list[Own | Other]:
    found: list[Own | Other] = [*_alive(of), *_others(of)]
    return [each for each in found if not each.is_writer]


# -- a rolling change ------------------------------------------------------------------------------------------------------


def _rolling(of: Situation, old: Sequence[Own]) -> Iterator[Deed]:
    """One step; there is nothing to start."""
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
    """The last that came go first.  All starters of a service choose alike, and each stops its own."""
    too_many = -_missing(of)
    if too_many <= 0 or of.phase != SERVING:
        return
    last_first = sorted(_standbys(of), key=lambda each: (each.standing == READY, bool(each.standing), -each.since_at))
    for each in last_first[:too_many]:
        if isinstance(each, Own):
            yield Stop(each.number, _TOO_MANY)
