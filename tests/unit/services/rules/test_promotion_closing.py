"""A domain closes after a contained exception: the writer there hands over to a standby elsewhere."""

import pytest
from msgspec.structs import replace

from mpsd.model.service import MemberState, Phase
from mpsd.services.rules.promotion import decide
from mpsd.services.rules.promotion_types import Closing, Fenced, Placed, Promote, Promoted, Ready, Service, Yield
from tests.unit.services.rules.test_promotion import ALONE, HASTY, LIMITS, NOW, A, B, C, service

READY, SERVING, ENDING = MemberState.READY, Phase.SERVING, Phase.FENCING


def closing(of: Service, domain: str) -> Service:
    return replace(of, members=tuple(replace(each, is_closing=each.domain == domain) for each in of.members))


RULES = {
    "its domain closes, and it is alone: it goes on": (service(SERVING, **ALONE), Closing("a"), SERVING),
    "its domain closes, too many promotions": (service(SERVING, promotions=HASTY), Closing("a"), SERVING),
    "a domain that closes is passed over": (
        closing(service(ENDING, READY, READY), "b"), Fenced(A), Phase.PROMOTING, Promote(C),
    ),
    "but for none": (closing(service(ENDING), "b"), Fenced(A), Phase.PROMOTING, Promote(B)),
    "both domains close: it goes on": (closing(service(SERVING), "b"), Closing("a"), SERVING),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rules(rule: str) -> None:
    before, event, phase, *decisions = RULES[rule]
    after, decided = decide(before, event, NOW, LIMITS)
    assert (after.phase, decided) == (phase, tuple(decisions))


def test_a_writer_whose_domain_closes_yields_as_soon_as_a_standby_elsewhere_is_ready() -> None:
    alone, _ = decide(service(SERVING, **ALONE), Closing("a"), NOW, LIMITS)
    yielding, decisions = decide(alone, Ready(B), NOW, LIMITS)
    assert (yielding.phase, decisions) == (Phase.YIELDING, (Yield(A),))
    promoted, decisions = decide(yielding, Fenced(A), NOW, LIMITS)
    assert decisions == (Promote(B),)
    serving, _ = decide(promoted, Promoted(B), NOW, LIMITS)
    assert serving.promotions == (), "it was planned, so it leaves room for failovers"
    assert decide(serving, Ready(A), NOW, LIMITS)[1] == (), "it stays where it is"


def test_a_member_that_moves_out_of_a_closing_domain_stays() -> None:
    alone, _ = decide(service(SERVING, **ALONE), Closing("a"), NOW, LIMITS)
    moved, _ = decide(alone, Placed(A, "d"), NOW, LIMITS)
    assert decide(moved, Ready(B), NOW, LIMITS)[1] == ()
