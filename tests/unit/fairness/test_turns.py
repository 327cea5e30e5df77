"""Users take turns, however much one of them has waiting."""

from mpsd.fairness.turns import Turns


def filled(*things: tuple[int, str]) -> Turns[str]:
    turns: Turns[str] = Turns()
    for uid, thing in things:
        turns.put(uid, thing)
    return turns


def test_one_of_each_user_and_in_the_order_of_each() -> None:
    turns = filled((1, "a"), (1, "b"), (1, "c"), (2, "x"), (3, "y"), (3, "z"))
    assert list(turns.take(10)) == ["a", "x", "y"]
    assert list(turns.take(10)) == ["b", "z"]
    assert list(turns.take(10)) == ["c"]
    assert list(turns.take(10)) == []


def test_who_had_a_turn_waits_for_all_others() -> None:
    turns = filled((1, "a"), (1, "b"), (2, "x"), (3, "y"))
    assert list(turns.take(1)) == ["a"]
    turns.put(4, "new")
    assert [list(turns.take(1)) for _ in range(4)] == [["x"], ["y"], ["b"], ["new"]]


def test_a_user_who_comes_late_waits_for_one_of_each_other_and_no_more() -> None:
    turns = filled(*((1, str(number)) for number in range(1000)))
    turns.put(2, "late")
    assert "late" in list(turns.take(2))


def test_it_knows_how_many_wait() -> None:
    turns = filled((1, "a"), (1, "b"), (2, "x"))
    assert (len(turns), turns.of(1), turns.of(2), turns.of(3)) == (3, 2, 1, 0)
    assert list(turns) == ["a", "b", "x"]
    list(turns.take(1))
    assert (len(turns), turns.of(1)) == (2, 1)
    assert list(turns) == ["x", "b"]


def test_the_oldest_thing_of_a_user_makes_way_for_the_newest() -> None:
    turns = filled((1, "a"), (1, "b"), (2, "x"))
    assert turns.put_newest(1, "c", 3, 9) is None
    assert turns.put_newest(1, "d", 3, 9) == "a"
    assert turns.put_newest(2, "y", 3, 9) is None
    assert (len(turns), turns.of(1), turns.of(2)) == (5, 3, 2)
    assert list(turns) == ["b", "c", "d", "x", "y"]


def test_where_too_many_wait_in_all_the_oldest_thing_of_the_user_with_most_makes_way() -> None:
    turns = filled((1, "a"), (1, "b"), (2, "x"), (3, "p"))
    assert turns.put_newest(4, "z", 3, 4) == "a"
    assert turns.put_newest(5, "late", 3, 4) == "late", "of users with one thing each, those who came first keep their turn"
    assert list(turns) == ["b", "x", "p", "z"]
    assert (len(turns), turns.of(5)) == (4, 0)
    assert list(turns.take(10)) == ["b", "x", "p", "z"]


def test_of_one_user_those_of_a_lower_rank_go_first() -> None:
    turns: Turns[str] = Turns(rank=len)
    for uid, thing in ((1, "aa"), (1, "a"), (2, "xxx"), (1, "b"), (1, "aaa"), (1, "bb")):
        turns.put(uid, thing)
    assert [next(turns.take(1)) for _ in range(6)] == ["a", "xxx", "b", "aa", "bb", "aaa"]


def test_the_next_turn_is_of_a_late_user_only_if_no_other_waits() -> None:
    turns = filled((1, "a"), (1, "b"), (2, "x"))
    assert turns.first(lambda thing: False) == "a"
    assert turns.first(lambda thing: thing == "a") == "x"
    assert turns.first(lambda thing: True) == "a"
    turns.remove(1, "a")
    assert turns.first(lambda thing: thing == "a") == "b"
    turns.remove(1, "b")
    turns.remove(2, "x")
    assert (turns.first(lambda thing: False), len(turns), turns.of(1)) == (None, 0, 0)


def test_who_rests_goes_to_the_end() -> None:
    turns = filled((1, "a"), (1, "b"), (2, "x"))
    turns.rest(1)
    turns.rest(3)
    assert list(turns) == ["x", "a", "b"]


def test_it_knows_whether_others_wait() -> None:
    turns = filled((1, "a"), (1, "b"))
    assert not turns.has_others_than(1)
    assert turns.has_others_than(2)
    turns.put(2, "x")
    assert turns.has_others_than(1)
