"""A key spends its burst and then its rate; events beyond that are counted, for every key."""

from mpsd.fairness.rates import OTHERS, Rate, Rates

SLOW = Rate(burst=3, per_second=0.5)


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    rates = Rates(SLOW)
    assert [rates.allows("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert [rates.allows("a", now) for now in (1.0, 2.0, 3.0, 4.0)] == [False, True, False, True]


def test_one_key_takes_nothing_from_another() -> None:
    rates = Rates(SLOW)
    for _ in range(100):
        rates.allows("a", 0.0)
    assert rates.allows("b", 0.0)


def test_all_keys_together_have_a_bound() -> None:
    """A refusal for the sake of the sum costs its key nothing."""
    rates = Rates(SLOW, SLOW.times(2))
    assert [rates.allows(key, 0.0) for key in "aaabbbccc"] == [True] * 6 + [False] * 3
    assert rates.take_suppressed() == {"c": 3}
    assert [rates.allows("c", 1.0) for _ in range(2)] == [True, False]


def test_what_was_suppressed_is_told_once() -> None:
    rates = Rates(SLOW)
    for _ in range(10):
        rates.allows("a", 0.0)
    rates.allows("b", 0.0)
    assert rates.take_suppressed() == {"a": 7}
    assert rates.take_suppressed() == {}


def test_a_rest_gives_the_burst_back_and_no_more() -> None:
    rates = Rates(SLOW)
    for _ in range(3):
        rates.allows("a", 0.0)
    assert [rates.allows("a", 1e6) for _ in range(4)] == [True, True, True, False]


def test_a_cost_is_spent_as_a_whole_or_not_at_all() -> None:
    rates = Rates(SLOW)
    assert not rates.allows("a", 0.0, cost=4)
    assert rates.allows("a", 0.0, cost=3)
    assert not rates.allows("a", 0.0, cost=1)


def test_too_many_keys_share_one_bucket_and_none_is_forgotten_that_counts() -> None:
    """A user with many uids gets no fresh burst for each of them for ever, and takes no memory."""
    rates = Rates(SLOW, most_keys=4)
    allowed = sum(rates.allows(key, 0.0) for key in range(1000))
    assert allowed == 4 + SLOW.burst
    assert rates.take_suppressed() == {OTHERS: 1000 - allowed}


def test_idle_keys_make_room() -> None:
    rates = Rates(SLOW, most_keys=4)
    for key in range(4):
        rates.allows(key, 0.0)
    rates.allows("new", 100.0)
    assert [rates.allows("new", 100.0) for _ in range(3)] == [True, True, False]
