"""The LLM example without processes: terms of members that die at any moment, one after another, on the same memory.

The engine is the toy with persistent cells; the record is a real forward state; the front end uses the real one's
bookkeeping.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Pages
from scheduler import Size
from toy import continued

from tests.seeds import seeds
from tests.unit.examples.llm_service import FakeService, Fate, ToyMemory

SIZE = Size.of(slots=3, length=40, page=4, pages=17)  # two long ones leave no room for a third


def open_daemon() -> FakeService:
    return FakeService(SIZE, ToyMemory(SIZE).engine)


def check(asked: list[tuple[list[int], int]], deaths: list[tuple[int, int]]) -> bool:
    """Return whether the last of the deaths happened."""
    service = open_daemon()
    streams = [service.begin(prompt, count, seed=n, temperature=n % 2) for n, (prompt, count) in enumerate(asked)]
    is_over = [service.serve(Fate(left), late) for left, late in deaths]
    assert service.serve(Fate(None))
    for number, (stream, (prompt, count)) in enumerate(zip(streams, asked, strict=True)):
        assert stream.tokens == continued(prompt, count, number, number % 2)
    assert service.streams.counts.finished == len(streams)
    assert not service.trouble
    assert "lost" not in service.report.said
    return not is_over[-1]


def test_every_token_comes_once_and_is_right_whenever_a_member_dies() -> None:
    """Between any two things that it does; some requests are filled in, some decoded, some wait for others to end."""
    asked = [(list(range(20)), 6), ([1], 9), (list(range(30)), 8), ([2, 3], 7)]
    left = 0
    while check(asked, [(left, left % 3)]):
        left += 1
    assert left > 100


@pytest.mark.parametrize("seed", seeds(5, 15))
def test_and_whenever_many_die_one_after_another(seed: int) -> None:
    random_ = random.Random(seed)
    asked = [
        ([random_.randrange(9) for _ in range(random_.randint(1, 25))], random_.randint(1, 15))
        for _ in range(random_.randint(1, 6))
    ]
    check(asked, [(random_.randrange(50), random_.randrange(4)) for _ in range(8)])


def test_who_hangs_up_frees_a_slot_for_others_also_across_a_death() -> None:
    for left in range(60):
        service = open_daemon()
        long = [service.begin([1, 2, number], 37) for number in range(2)]
        short = service.begin([5], 4)
        service.serve(Fate(left))
        for stream in long:
            service.streams.end(stream)
        assert service.serve(Fate(None))
        assert short.tokens == continued([5], 4)


def test_a_step_is_done_again_at_most_once() -> None:
    """At any moment of death, only unpublished steps are repeated."""
    for left in range(50):
        memory = ToyMemory(SIZE)
        service = FakeService(SIZE, memory.engine)
        stream = service.begin([3], 12)
        service.serve(Fate(left))
        record, before = service.record(), memory.cache.writes
        assert service.serve(Fate(None))
        assert stream.tokens == continued([3], 12)
        assert memory.cache.writes - before == 12 - (record["step"] if record else 0), "one write for each step"


def test_what_can_never_be_served_is_refused_in_words() -> None:
    service = open_daemon()
    long, odd = service.begin([1] * 39, 2), service.begin([50_000], 1)
    assert service.serve(Fate(None))
    assert long.why == "39 tokens of prompt and 2 more are over 40"
    assert odd.why == "token 50000: there are 50000"


def test_a_token_ends_its_request_early() -> None:
    service = open_daemon()
    expected = continued([7], 10)
    stream = service.begin([7], 10, stop=expected[3])
    assert service.serve(Fate(None))
    assert stream.tokens == expected[:4]


def test_tokens_that_went_astray_are_asked_for_again() -> None:
    service = open_daemon()
    stream = service.begin([7], 6)
    take, lost = service.streams.take, []

    def careless(found: list[tuple[int, int, int]]) -> None:
        kept = [each for each in found if each[1] not in (2, 3) or each[1] in lost]
        lost.extend(each[1] for each in found)
        take(kept)

    service.streams.take = careless  # type: ignore[method-assign]
    assert service.serve(Fate(None))
    assert stream.tokens == continued([7], 6)
    assert service.streams.counts.gaps == 1


def test_a_token_that_comes_again_as_another_one_is_told() -> None:
    service = open_daemon()
    stream = service.begin([7], 6)
    number = stream.request.id
    service.streams.take([(number, 0, 5), (number, 0, 5), (number, 0, 6), (number + 1, 0, 1)])
    assert stream.tokens == [5]
    assert (service.streams.counts.again, service.streams.counts.differing) == (2, 1)
    assert service.trouble == [f"request {number}, token 0: it was 5, and comes again as 6"]


def test_a_record_without_memory_is_made_good_with_what_the_client_has() -> None:
    """The memory ended with the process: the next one begins with the prompt and the tokens that were delivered."""
    service = open_daemon()
    stream = service.begin([4, 5, 6], 12)
    service.serve(Fate(40))
    assert 0 < len(stream.tokens) < 12
    service.state, service.engine = None, ToyMemory(SIZE).engine
    assert service.serve(Fate(None))
    assert stream.tokens == continued([4, 5, 6], 12)


def test_a_client_who_has_more_than_the_record_is_believed_and_it_is_told() -> None:
    """It must not be; here the record of a term before is put back."""
    service = open_daemon()
    stream = service.begin([4, 5, 6], 12)
    service.serve(Fate(20))
    old, has = service.state, len(stream.tokens)
    service.serve(Fate(20))
    assert has < len(stream.tokens) < 12
    service.state = old
    assert service.serve(Fate(None))
    assert stream.tokens == continued([4, 5, 6], 12)
    assert "lost" in service.report.said


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=40))
def test_no_page_has_two_owners(acts: list[tuple[bool, int]]) -> None:
    pages, owned = Pages(12), []
    for is_take, count in acts:
        if is_take and (taken := pages.take(count)) is not None:
            owned.append(taken)
        elif not is_take and owned:
            pages.give_back(owned.pop(count % len(owned)))
        flat = [page for each in owned for page in each]
        assert len(set(flat)) == len(flat)
        assert 0 not in flat
        assert pages.free == 11 - len(flat)


@pytest.mark.parametrize("wrong", [(1, 1), (0, 2), (3, 99)])
def test_a_record_that_cannot_be_is_refused(wrong: tuple[int, ...]) -> None:
    pages = Pages(12)
    with pytest.raises(ValueError, match="not free, or twice"):
        pages.take_these(wrong)


@pytest.mark.parametrize("numbers", [(0, 40, 4, 0), (3, 40, 0, 0), (3, 4, 8, 0), (3, 40, 4, 10)])
def test_sizes_that_cannot_be_are_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        Size.of(*numbers)
