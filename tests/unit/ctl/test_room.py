"""Room for one more in a rolling change: when it is asked for again, and what a successor lacks."""

import pytest
from mpsctl.starter.plan import Make
from mpsctl.starter.room import AGAIN_SECONDS, FREED_SECONDS, Room, lacking

WHY = "20 % asked, 90 % of 100 % taken"


def test_who_has_ended_has_made_room() -> None:
    room = Room()
    room.refuse(100.0, WHY)
    assert (room.may_surge, room.may_make_way, room.why) == (False, True, WHY)
    room.free(110.0)
    assert room.may_surge


def test_mpsd_may_see_an_end_a_moment_later() -> None:
    """No other member is stopped because of that."""
    room = Room()
    room.free(100.0)
    room.refuse(100.1, WHY)
    assert (room.may_surge, room.may_make_way) == (False, False)
    room.look(100.0 + FREED_SECONDS)
    assert room.may_surge
    room.refuse(100.0 + FREED_SECONDS, WHY)
    assert (room.may_surge, room.may_make_way) == (False, True)


def test_a_change_of_the_settings_forgets_no_end() -> None:
    """The next deal comes while former members are ending: nobody is ended for room that is about to be there."""
    room = Room()
    room.free(100.0)
    room = Room(freed_at=room.freed_at)
    room.refuse(100.1, WHY)
    assert (room.may_surge, room.may_make_way) == (False, False)


def test_who_would_make_way_for_nothing_stays_and_it_is_tried_again() -> None:
    room = Room()
    room.refuse(100.0, WHY)
    room.refuse_way(100.0)
    room.look(99.0 + AGAIN_SECONDS)
    assert (room.may_surge, room.may_make_way) == (False, False)
    room.look(100.0 + AGAIN_SECONDS)
    assert (room.may_surge, room.may_make_way) == (True, True)


def test_a_reason_is_news_once() -> None:
    room = Room()
    assert [room.is_news(why) for why in (WHY, WHY, "another", WHY)] == [True, False, True, True]


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [
        (Make(20.0), Make(70.0), Make(50.0)),
        (Make(20.0, 4 << 30), Make(70.0, 6 << 30), Make(50.0, 2 << 30)),
        (Make(20.0, 6 << 30), Make(70.0, 4 << 30), Make(50.0)),
        (Make(20.0), Make(None, 4 << 30), Make(None, 4 << 30)),
        (Make(None, 4 << 30), Make(30.0, 4 << 30), Make(30.0)),
        (Make(70.0), Make(20.0), None),
        (Make(20.0, 4 << 30), Make(20.0, 6 << 30), Make(None, 2 << 30)),
    ],
)
def test_what_a_successor_lacks(old: Make, new: Make, more: Make | None) -> None:
    assert lacking(old, new) == more
