"""The shield is mapped as soon as a context exists, and never replaces a mapping that is not mpsd's."""

import pytest

from mpsd.model.client import ShieldState
from mpsd.uvm.rules.shield import ShieldPlan, Span
from mpsd.uvm.shield_mapping import ShieldMapping
from mpsd.uvm.space import Outcome, RangeResult
from tests.unit.uvm.fake_clients import DONE, NOT_YET, FakeSpace

A, B = Span(0x10000, 0x10000), Span(0x20000, 0x20000)
PLAN = ShieldPlan((A, B))
IN_USE, REFUSED, NO_SPACE = (
    RangeResult(Outcome.IN_USE, "in use"),
    RangeResult(Outcome.REFUSED, "no"),
    RangeResult(Outcome.NO_SPACE, "mm"),
)


def laid(space: FakeSpace) -> list[int]:
    return [base for what, base, *_ in space.asked if what == "lay"]


def test_a_context_that_comes_late_gets_it_late() -> None:
    space = FakeSpace(lays=[NOT_YET, NOT_YET, DONE])
    laying = ShieldMapping(space, PLAN, ("gpu",))
    laying.attempt()
    assert (laying.state, laying.is_done) == (ShieldState.WAITING, False)
    laying.attempt()
    assert (laying.state, laying.is_done, laying.laid_bytes) == (ShieldState.ON, True, 0x30000)
    assert [what for what, *_ in space.asked].count("reserve") == 2
    asked = len(space.asked)
    laying.attempt()
    assert len(space.asked) == asked


def test_nothing_is_laid_where_the_reservation_failed() -> None:
    space = FakeSpace(reserves=[IN_USE, DONE])
    laying = ShieldMapping(space, PLAN, ("gpu",))
    laying.attempt()
    assert laid(space) == [B.base]
    assert (laying.state, laying.laid_bytes) == (ShieldState.PARTLY, B.length)


@pytest.mark.parametrize(
    ("reserves", "lays", "state"),
    [
        pytest.param([IN_USE], [DONE], ShieldState.KEPT, id="an earlier mpsd laid it"),
        pytest.param([REFUSED], [DONE], ShieldState.REFUSED, id="refused"),
        pytest.param([NO_SPACE], [DONE], ShieldState.OFF, id="the second descriptor"),
        pytest.param([DONE], [REFUSED], ShieldState.REFUSED, id="reserved, and then refused"),
        pytest.param([DONE], [DONE, REFUSED], ShieldState.PARTLY, id="half of it"),
        pytest.param([DONE], [DONE, NOT_YET], ShieldState.PARTLY, id="half of it so far"),
    ],
)
def test_states(reserves: list[RangeResult], lays: list[RangeResult], state: ShieldState) -> None:
    laying = ShieldMapping(FakeSpace(reserves, lays), PLAN, ("gpu",))
    laying.attempt()
    assert laying.state is state
    assert bool(laying.why) == (REFUSED in reserves + lays)


def test_what_is_reserved_in_vain_is_given_back() -> None:
    space = FakeSpace(lays=[REFUSED])
    ShieldMapping(space, PLAN, ("gpu",)).attempt()
    assert [each for each in space.asked if each[0] == "free"] == [("free", A.base, A.length), ("free", B.base, B.length)]


def test_each_gpu_when_it_has_a_context() -> None:
    space = FakeSpace(lays=[DONE, NOT_YET, DONE])
    laying = ShieldMapping(space, ShieldPlan((A,)), ("first", "second"))
    laying.attempt()
    assert (laying.state, laying.is_done, laying.laid_bytes) == (ShieldState.PARTLY, False, A.length)
    laying.attempt()
    assert (laying.state, laying.is_done) == (ShieldState.ON, True)
    assert [gpu for what, _, _, gpu in space.asked[1:]] == ["first", "second", "second"]


def test_a_gpu_that_refuses_does_not_take_it_from_the_other() -> None:
    space = FakeSpace(lays=[DONE, REFUSED])
    laying = ShieldMapping(space, ShieldPlan((A,)), ("first", "second"))
    laying.attempt()
    assert (laying.state, laying.laid_bytes) == (ShieldState.PARTLY, A.length)
    assert ("free", A.base, A.length) not in space.asked


@pytest.mark.parametrize("plan", [ShieldPlan((), "off"), PLAN])
def test_nothing_to_lay_or_nowhere_to_lay_it(plan: ShieldPlan) -> None:
    space = FakeSpace()
    laying = ShieldMapping(space, plan, ())
    laying.attempt()
    assert (laying.state, laying.is_done, space.asked) == (ShieldState.OFF, True, [])
    assert laying.why
