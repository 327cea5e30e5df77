"""The active and its successor if a service's work has an end: after that, no member follows."""

import pytest

from mpsd.model.process import ProcessId
from mpsd.model.service import Phase
from mpsd.services.rules.promotion import decide
from mpsd.services.rules.promotion_types import Event, Fenced, Finished, Joined, Member, Promote, Service, Unserved
from tests.unit.services.rules.test_promotion import LIMITS, NOW, READY, A, B, service

SERVING, YIELDING, FENCING = Phase.SERVING, Phase.YIELDING, Phase.FENCING
RULES: dict[str, tuple[Service, Event, Phase, object]] = {
    "its work is done": (
        service(SERVING, until_done=True, is_done=True), Fenced(A), Phase.IDLE, Unserved("its work is done"),
    ),
    "that was said, and it faults": (
        service(FENCING, until_done=True, is_done=True), Fenced(A), Phase.PROMOTING, Promote(B),
    ),
    "one joins after the work": (
        service(Phase.IDLE, members=(Member(B, "b", 1, READY),), is_done=True), Joined(A, "a"), Phase.PROMOTING, Promote(B),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_rules(rule: str) -> None:
    before, event, phase, decision = RULES[rule]
    after, decided = decide(before, event, NOW, LIMITS)
    assert (after.phase, decided) == (phase, (decision,))


@pytest.mark.parametrize(("phase", "process", "is_done"), [(SERVING, A, True), (SERVING, B, False), (YIELDING, A, False)])
def test_only_who_serves_unasked_ends_the_work(phase: Phase, process: ProcessId, is_done: bool) -> None:
    assert decide(service(phase, until_done=True), Finished(process), NOW, LIMITS)[0].is_done == is_done
