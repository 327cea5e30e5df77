"""The protocol of a forward state, walked through exhaustively as a model; test_state.py walks the code itself."""

import pytest

from tests.native.state_model import ALL, SLOTS, Model, Part, Wrong, last_complete

UPDATES = 3 * SLOTS  # each slot is written, and twice again


def test_no_order_of_stores_and_loads_gives_a_mixture_or_an_old_record() -> None:
    states, ends = Model(UPDATES).walk()
    assert ends == set(range(UPDATES + 1))
    assert states > 1000


def test_a_writer_may_stop_after_any_store() -> None:
    """The next reader finds the last complete update."""
    model = Model(UPDATES)
    for made in range(len(model.stores) + 1):
        visible = (1 << made) - 1
        assert model.read_alone(visible) == model.complete(visible)


@pytest.mark.parametrize("part", Part)
def test_no_part_of_the_protocol_can_be_left_out(part: Part) -> None:
    """So the model detects errors."""
    with pytest.raises(Wrong):
        Model(UPDATES, ALL - {part}).walk()


@pytest.mark.parametrize(
    ("marks", "last"),
    [
        pytest.param((0, 0), 0, id="nothing yet"),
        pytest.param((0, 1), 0, id="the first is being written"),
        pytest.param((0, 2), 1, id="the first"),
        pytest.param((3, 2), 1, id="the second is being written"),
        pytest.param((4, 2), 2, id="the second"),
        pytest.param((4, 5), 2, id="the third over the first"),
        pytest.param((4, 6), 3, id="the third"),
        pytest.param((7, 6), 3, id="the fourth over the second"),
        pytest.param((2**64 - 4, 2**64 - 6), 2**63 - 2, id="near the end of all numbers"),
        pytest.param((1, 0), None, id="not the first one's slot"),
        pytest.param((2, 0), None, id="nor where it is complete"),
        pytest.param((4, 0), None, id="the second without the first"),
        pytest.param((3, 0), None, id="the second begun without the first"),
        pytest.param((3, 5), None, id="two at once"),
        pytest.param((4, 9), None, id="one in between is missing"),
        pytest.param((4, 4), None, id="the same one twice"),
        pytest.param((2**64 - 1,) * 2, None, id="all at their end"),
    ],
)
def test_marks_say_what_was_complete_last(marks: tuple[int, int], last: int | None) -> None:
    assert last_complete(marks) == last
