"""The starter's plan: a row for each rule, and whole changes carried out to their end."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from mpsctl.starter.plan import (
    FAULTED,
    ILL_SECONDS,
    READY,
    SILENT,
    Deed,
    HandOver,
    Make,
    MakeWay,
    Other,
    Own,
    Situation,
    Start,
    Stop,
    plan,
)
from mpsctl.starter.restarts import EARLY_SECONDS, MOST_EARLY, Restarts, ended

NEW, OLD = Make(20.0), Make(40.0)
WARMING = "warming"


def own(number: int, standing: str = READY, **more: object) -> Own:
    """Return children of which the first one writes."""
    return Own(number, **{"make": NEW, "standing": standing, "is_writer": number == 1, "since_at": float(number)} | more)  # type: ignore[arg-type]


def old(number: int, standing: str = READY, **more: object) -> Own:
    return own(number, standing, make=OLD, **more)


def situation(*members: Own, standbys: int = 1, **more: object) -> Situation:
    return Situation(standbys, NEW, members, **{"phase": "serving"} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "deeds"),
    [
        pytest.param(situation(), (Start(), Start()), id="nobody is there"),
        pytest.param(situation(standbys=0), (Start(),), id="no standby is wanted"),
        pytest.param(situation(may_start=False), (), id="not yet"),
        pytest.param(situation(own(1), own(2, "")), (), id="one that has not joined counts"),
        pytest.param(situation(own(1), others=(Other(),)), (), id="another starter's counts"),
        pytest.param(situation(own(1), others=(Other(FAULTED),)), (Start(),), id="one without its context does not"),
        pytest.param(situation(own(1), own(2, FAULTED)), (Start(),), id="nor does a child without it"),
        pytest.param(situation(own(1), own(2, is_stopping=True)), (Start(),), id="nor one that is ended"),
        pytest.param(
            situation(own(1), own(2, FAULTED, ill_seconds=ILL_SECONDS[FAULTED]), may_start=False),
            (Stop(2, "it is faulted"),),
            id="it may end by itself, for a while",
        ),
        pytest.param(situation(own(1), own(2, SILENT, ill_seconds=20.0)), (), id="one that is silent may be heard of again"),
        pytest.param(
            situation(own(1), own(2, SILENT, ill_seconds=ILL_SECONDS[SILENT])), (Stop(2, "it is silent"),), id="it is not"
        ),
        pytest.param(situation(own(1, SILENT, ill_seconds=99.0), own(2)), (), id="of the active mpsd decides"),
        pytest.param(situation(own(1), own(2), own(3)), (Stop(3, "fewer standbys are wanted"),), id="the last that came goes"),
        pytest.param(situation(own(1), own(2, WARMING), own(3)), (Stop(2, "fewer standbys are wanted"),), id="the ready stays"),
        pytest.param(situation(own(1), own(2), own(3), phase="promoting"), (), id="not while it is not known who serves"),
        pytest.param(situation(own(1), own(2), others=(Other(since_at=9.0),)), (), id="another starter ends its own"),
    ],
)
def test_as_many_as_are_wanted(of: Situation, deeds: tuple[Deed, ...]) -> None:
    assert plan(of) == deeds


REPLACED, TOO_MANY = "it is replaced", "fewer standbys are wanted"


@pytest.mark.parametrize(
    ("of", "deeds"),
    [
        pytest.param(situation(old(1), old(2)), (Start(),), id="one more"),
        pytest.param(situation(old(1), old(2), own(3, WARMING)), (), id="it warms"),
        pytest.param(situation(old(1), old(2), own(3)), (HandOver(3),), id="it is ready"),
        pytest.param(situation(old(1), old(2), own(3), is_busy=True), (), id="asked for already"),
        pytest.param(situation(old(1), old(2), own(3), phase="yielding"), (), id="it takes over"),
        pytest.param(
            situation(old(1, is_writer=False), old(2), own(3, is_writer=True), phase="promoting"), (), id="it is not there yet"
        ),
        pytest.param(
            situation(old(1, is_writer=False), old(2), own(3, is_writer=True)), (Stop(1, REPLACED),), id="one may go"
        ),
        pytest.param(
            situation(old(1, WARMING, is_writer=False), old(2), own(3, is_writer=True)),
            (Stop(1, REPLACED),),
            id="first who could not serve",
        ),
        pytest.param(situation(old(2), own(1), own(3, WARMING)), (), id="not the only standby"),
        pytest.param(situation(old(1), own(2), standbys=0), (HandOver(2),), id="without standbys"),
        pytest.param(situation(old(1), old(2), may_surge=False), (MakeWay(2),), id="no room for one more"),
        pytest.param(
            situation(old(1), old(2), old(3, is_stopping=True), may_surge=False), (), id="one that ends will make room"
        ),
        pytest.param(
            situation(old(1), old(2), old(3, is_stopping=True, is_left=True), may_surge=False),
            (MakeWay(2),),
            id="one that does not end makes none",
        ),
        pytest.param(situation(old(1), old(2), may_surge=False, may_make_way=False), (), id="nor would that make room"),
        pytest.param(situation(old(1), old(2), old(3)), (Stop(2, TOO_MANY),), id="what is too many goes first"),
        pytest.param(
            situation(old(1), old(2), old(3), may_surge=False), (Stop(2, TOO_MANY),), id="also where there is no room"
        ),
        pytest.param(situation(old(1), own(2, WARMING), may_surge=False), (), id="one at a time"),
        pytest.param(situation(old(1), own(2), may_surge=False), (HandOver(2),), id="it has made room"),
        pytest.param(situation(old(1), standbys=0, may_surge=False), (MakeWay(1),), id="nobody serves for a while"),
        pytest.param(situation(old(1), others=(Other(),), may_surge=False), (MakeWay(1),), id="others serve meanwhile"),
    ],
)
def test_a_rolling_change(of: Situation, deeds: tuple[Deed, ...]) -> None:
    assert plan(of) == deeds


def played(of: Situation) -> Iterator[Situation]:
    """Carry out the plan, one action at a time; then warming members become ready. Ends when the plan is empty."""
    for _ in range(100):
        yield of
        deeds = plan(of)
        if deeds:
            of = _after(of, deeds[0])
        elif any(each.standing != READY for each in of.own):
            of = replace(of, own=tuple(replace(each, standing=READY) for each in of.own))
        else:
            return
    raise AssertionError("it does not come to an end")


def _after(of: Situation, deed: Deed) -> Situation:
    match deed:
        case Start():
            number = max((each.number for each in of.own), default=0) + 1
            made = Own(number, of.make, "", since_at=float(number), is_writer=not of.own and not of.others)
            return replace(of, own=(*of.own, made), phase="serving")
        case Stop(number) | MakeWay(number):
            left = tuple(each for each in of.own if each.number != number)
            if left and not any(each.is_writer for each in left):
                left = (replace(left[0], is_writer=True), *left[1:])
            return replace(of, own=left)
        case HandOver(number):
            before = {each.number for each in of.own if each.is_writer}
            moved = tuple(
                replace(each, is_writer=each.number == number, standing=WARMING if each.number in before else each.standing)
                for each in of.own
            )
            return replace(of, own=moved)


def ready(of: Situation) -> int:
    return sum(each.standing == READY and not each.is_writer for each in of.own)


@pytest.mark.parametrize("standbys", [0, 1, 2, 3])
def test_a_change_leaves_as_many_standbys_as_are_wanted(standbys: int) -> None:
    """At each moment, and one member serves."""
    begin = situation(*(old(number) for number in range(1, standbys + 2)), standbys=standbys)
    steps = list(played(begin))
    assert [each.make for each in steps[-1].own] == [NEW] * (standbys + 1)
    assert all(ready(each) >= standbys for each in steps)
    assert all(any(member.is_writer for member in each.own) for each in steps)
    assert max(len(each.own) for each in steps) == standbys + 2


@pytest.mark.parametrize("standbys", [0, 1, 2, 3])
def test_a_change_without_room_takes_one_at_a_time(standbys: int) -> None:
    begin = situation(*(old(number) for number in range(1, standbys + 2)), standbys=standbys, may_surge=False)
    steps = list(played(begin))
    assert [each.make for each in steps[-1].own] == [NEW] * (standbys + 1)
    assert all(ready(each) >= standbys - 1 for each in steps)
    assert max(len(each.own) for each in steps) == standbys + 1


@pytest.mark.parametrize("may_surge", [True, False])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_change_and_another_number_of_standbys_at_once(before: int, after: int, may_surge: bool) -> None:
    begin = situation(*(old(number) for number in range(1, before + 2)), standbys=after, may_surge=may_surge)
    steps = list(played(begin))
    assert [each.make for each in steps[-1].own] == [NEW] * (after + 1)
    assert max(len(each.own) for each in steps) <= max(before, after) + 2
    if may_surge:
        assert all(ready(each) >= min(before, after) for each in steps)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (1, 0), (0, 2)])
def test_other_numbers_of_standbys(before: int, after: int) -> None:
    begin = situation(*(own(number) for number in range(1, before + 2)), standbys=after)
    steps = list(played(begin))
    assert len(steps[-1].own) == after + 1
    assert all(member.is_writer for each in steps for member in each.own if member.number == 1)


def test_at_the_end_standbys_go_first() -> None:
    members = (own(1), own(2), own(3, ""))
    assert plan(situation(*members, is_ending=True)) == (Stop(2, "the service ends"), Stop(3, "the service ends"))
    stopping = tuple(replace(each, is_stopping=not each.is_writer) for each in members)
    assert plan(situation(*stopping, is_ending=True)) == ()
    assert plan(situation(members[0], is_ending=True)) == (Stop(1, "the service ends"),)


def test_who_ends_early_is_replaced_ever_later() -> None:
    restarts, waited = Restarts(), []
    for _ in range(MOST_EARLY):
        assert not restarts.has_given_up
        restarts = ended(restarts, EARLY_SECONDS - 1, False, 100.0)
        waited.append(restarts.not_before - 100.0)
    assert waited == [0, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert restarts.has_given_up
    assert ended(restarts, EARLY_SECONDS, False, 100.0) == Restarts()


def test_one_that_was_ready_is_replaced_at_once() -> None:
    """The starter replaces it as often as it ends."""
    assert ended(Restarts(), 1.0, True, 100.0) == Restarts()
    assert ended(Restarts(3, 50.0), 1.0, True, 100.0) == Restarts(3, 50.0)


# -- a replica -------------------------------------------------------------------------------------------------------------

HOME, AWAY = Make(20.0, gpu="GPU-a"), Make(20.0, gpu="GPU-b")
MOVED, ENDS = "the service has moved to another GPU", "the service ends"


def at_home(number: int, **more: object) -> Own:
    return own(number, **{"make": HOME, "has_joined": True} | more)  # type: ignore[arg-type]


def away(number: int, **more: object) -> Own:
    return Own(number, **{"make": AWAY} | more)  # type: ignore[arg-type]


def two_gpus(*members: Own, **more: object) -> Situation:
    return replace(situation(*members, **more), make=HOME, **{"replica": AWAY, "may_start_replica": True} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "deeds"),
    [
        pytest.param(two_gpus(phase=""), (Start(), Start()), id="none before the service exists: it would make the arena"),
        pytest.param(two_gpus(at_home(1)), (Start(), Start(is_replica=True)), id="a standby and a replica"),
        pytest.param(two_gpus(at_home(1), at_home(2), away(3)), (), id="all are there"),
        pytest.param(two_gpus(at_home(1), away(3)), (Start(),), id="a replica is no standby"),
        pytest.param(two_gpus(at_home(1), at_home(2), may_start_replica=False), (), id="another starter has one, or not yet"),
        pytest.param(two_gpus(at_home(1), at_home(2), away(3, is_stopping=True)), (), id="the one before has yet to end"),
        pytest.param(
            two_gpus(at_home(1), at_home(2), away(3, is_stopping=True, is_left=True)), (Start(is_replica=True),), id="it hangs"
        ),
        pytest.param(
            two_gpus(at_home(1), at_home(2), away(3, make=replace(AWAY, round=1))), (Stop(3, REPLACED),), id="other settings"
        ),
        pytest.param(
            two_gpus(at_home(1), at_home(2), away(3, is_writer=True, has_joined=True), away(4, has_joined=True)),
            (Stop(3, MOVED), Stop(4, MOVED)),
            id="those on the lost GPU end, before a replica starts there",
        ),
        pytest.param(
            two_gpus(at_home(1), at_home(2), away(3), away(4)), (Stop(4, MOVED),), id="one that was starting is the replica"
        ),
        pytest.param(two_gpus(at_home(1), at_home(2), away(3), phase="fencing"), (), id="it is needed soon"),
        pytest.param(
            two_gpus(at_home(1), at_home(2), away(3), is_ending=True), (Stop(2, ENDS), Stop(3, ENDS)), id="it ends too"
        ),
    ],
)
def test_a_replica_is_kept_on_the_other_gpu(of: Situation, deeds: tuple[Deed, ...]) -> None:
    assert plan(of) == deeds
