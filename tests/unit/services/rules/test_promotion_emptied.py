"""The active and its successor if the vault has lost the arena's contents: only the active still has them."""

import pytest

from mpsd.model.service import Phase
from mpsd.services.rules.promotion import decide
from mpsd.services.rules.promotion_types import (
    Asked,
    Elapsed,
    Emptied,
    Ended,
    Event,
    Faulted,
    Fence,
    Fenced,
    Filled,
    Keep,
    Promote,
    Promoted,
    Refuse,
    Silent,
)
from tests.unit.services.rules.test_promotion import LIMITS, NOW, A, B, service

LOST = "the vault has lost its memory, and the one that serves has not given it again"
PROMOTING, SERVING, YIELDING, FENCING = Phase.PROMOTING, Phase.SERVING, Phase.YIELDING, Phase.FENCING
RULES: dict[str, tuple[Phase, Event, Phase, tuple[object, ...]]] = {
    "a handover would lose it": (SERVING, Asked(), SERVING, (Refuse(LOST),)),
    "so would the end of one that is silent": (SERVING, Silent(A), SERVING, ()),
    "a fault ends it all the same": (SERVING, Faulted("a"), FENCING, (Fence(A),)),
    "and so does its own end": (SERVING, Ended(A), FENCING, (Fence(A),)),
    "it is lost with who served": (FENCING, Fenced(A), PROMOTING, (Promote(B),)),
    "who is too slow to begin anew is fenced": (PROMOTING, Elapsed(), FENCING, (Fence(A),)),
    "who begins anew serves": (PROMOTING, Promoted(A), SERVING, ()),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rules(rule: str) -> None:
    before, event, phase, decisions = RULES[rule]
    after, decided = decide(service(before, is_empty=True), event, NOW, LIMITS)
    assert (after.phase, decided, after.is_empty) == (phase, decisions, True)


@pytest.mark.parametrize("phase", Phase)
def test_nothing_else_follows_from_the_loss_but_that_a_handover_is_taken_back(phase: Phase) -> None:
    after, decided = decide(service(phase), Emptied(), NOW, LIMITS)
    is_taken_back = phase is YIELDING
    assert (after.is_empty, after.writer) == (True, service(phase).writer)
    assert (after.phase, decided) == (SERVING if is_taken_back else phase, (Keep(A),) if is_taken_back else ())
    assert not decide(after, Filled(), NOW, LIMITS)[0].is_empty


def test_who_is_silent_is_fenced_when_what_it_has_is_in_the_vault_again() -> None:
    silent, _ = decide(service(SERVING, is_empty=True), Silent(A), NOW, LIMITS)
    assert decide(silent, Filled(), NOW, LIMITS)[1] == (Fence(A),)
