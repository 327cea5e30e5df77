"""The protocol of a forward state, walked through exhaustively as a model; test_state.py walks the code itself."""

import pytest

from tests.native.state_model import ALL, SLOTS, Model, Part, Wrong, last_complete

UPDATES = SLOTS + 2  # each slot is written again, and some twice


def test_no_order_of_stores_and_loads_gives_a_mixture_or_an_old_record() -> None:
    states, ends = Model(UPDATES).walk()
    assert ends == set(range(UPDATES + 1))
    assert states > 1000


def test_a_writer_may_stop_after_any_store() -> None:
    """Whoever comes then finds the update that was complete last."""
    model = Model(UPDATES)
    for made in range(len(model.stores) + 1):
        visible = (1 << made) - 1
        assert model.read_alone(visible) == model.complete(visible)


@pytest.mark.parametrize("part", Part)
def test_no_part_of_the_protocol_can_be_left_out(part: Part) -> None:
    """So the model can tell right from wrong."""
    with pytest.raises(Wrong):
        Model(UPDATES, ALL - {part}).walk()


@pytest.mark.parametrize(
    ("marks", "last"),
    [
        pytest.param((0, 0, 0, 0), 0, id="nothing yet"),
        pytest.param((0, 1, 0, 0), 0, id="the first is being written"),
        pytest.param((0, 2, 0, 0), 1, id="the first"),
        pytest.param((0, 2, 3, 0), 1, id="the second is being written"),
        pytest.param((8, 2, 4, 6), 4, id="all slots"),
        pytest.param((8, 9, 4, 6), 4, id="the fifth over the first"),
        pytest.param((8, 10, 4, 6), 5, id="the fifth"),
        pytest.param((8, 10, 11, 6), 5, id="the sixth over the second"),
        pytest.param((1, 0, 0, 0), None, id="not the first one's slot"),
        pytest.param((0, 0, 4, 0), None, id="the second without the first"),
        pytest.param((8, 9, 11, 6), None, id="two at once"),
        pytest.param((8, 11, 4, 6), None, id="an update of another slot"),
        pytest.param((8, 2, 4, 10), None, id="one that came in between is missing"),
        pytest.param((2**64 - 1,) * 4, None, id="all at their end"),
    ],
)
def test_marks_say_what_was_complete_last(marks: tuple[int, ...], last: int | None) -> None:
    assert last_complete(marks) == last
