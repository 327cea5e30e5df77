"""An active that is asked to leave: it yields, whether or not a standby is ready."""

import pytest

from mpsd.model.service import Phase
from mpsd.services.rules.promotion import decide
from mpsd.services.rules.promotion_types import (
    Asked,
    Decision,
    Elapsed,
    Event,
    Fenced,
    Keep,
    Promote,
    Promoted,
    Ready,
    Refuse,
    Service,
    Unserved,
    Yield,
)
from tests.unit.services.rules.test_promotion import ALONE, HASTY, LIMITS, NOW, A, B, service

LEAVE = Asked(is_leave=True)
SERVING, YIELDING = Phase.SERVING, Phase.YIELDING
LOST = "the vault has lost its memory, and the one that serves has not given it again"
RULES: dict[str, tuple[Service, Event, Phase, Decision]] = {
    "nobody has to be ready": (service(SERVING, **ALONE), LEAVE, YIELDING, Yield(A)),
    "it is no promotion": (service(SERVING, promotions=HASTY), LEAVE, YIELDING, Yield(A)),
    "it would take the memory along": (service(SERVING, is_empty=True), LEAVE, SERVING, Refuse(LOST)),
    "too slow, and alone: it goes on": (service(YIELDING, **ALONE, wish=A), Elapsed(), SERVING, Keep(A)),
    "it leaves": (service(YIELDING, **ALONE, wish=A), Fenced(A), Phase.IDLE, Unserved("no standby is ready")),
    "it leaves, and one is ready": (service(YIELDING, wish=A), Fenced(A), Phase.PROMOTING, Promote(B)),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rules(rule: str) -> None:
    before, event, phase, decision = RULES[rule]
    after, decided = decide(before, event, NOW, LIMITS)
    assert (after.phase, decided) == (phase, (decision,))


@pytest.mark.parametrize("phase", [each for each in Phase if each is not SERVING])
def test_only_who_serves_can_be_asked(phase: Phase) -> None:
    before = service(phase)
    after, decided = decide(before, LEAVE, NOW, LIMITS)
    assert (after, [type(each) for each in decided]) == (before, [Refuse])


def test_who_has_left_does_not_come_back_and_its_successor_does_not_count() -> None:
    of = service(SERVING, **ALONE)
    for event in (LEAVE, Fenced(A)):
        of, _ = decide(of, event, NOW, LIMITS)
    assert (of.member(A), of.wish) == (None, None)
    assert decide(of, Ready(A), NOW, LIMITS)[1] == (Refuse("1 is no member"),)
    for event in (Ready(B), Promoted(B)):
        of, _ = decide(of, event, NOW, LIMITS)
    assert (of.writer, of.promotions) == (B, ())
