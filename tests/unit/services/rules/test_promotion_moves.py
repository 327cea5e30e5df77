"""A move to another GPU: the writer stops after a last barrier, and no member of this service is promoted until it is late."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from mpsd.model.process import ProcessId
from mpsd.model.service import MemberState, Phase
from mpsd.services.rules.promotion import decide, successor
from mpsd.services.rules.promotion_types import (
    Asked,
    Decision,
    Elapsed,
    Emptied,
    Ended,
    Event,
    Failed,
    Faulted,
    Fence,
    Fenced,
    Filled,
    Keep,
    Promote,
    Promoted,
    Ready,
    Refuse,
    Service,
    Silent,
    Step,
    Taken,
    Unmoved,
    Unserved,
    Yield,
)
from tests.unit.services.rules.test_promotion import ALONE, ALREADY, HASTY, LIMITS, NOW, A, B, C, service
from tests.unit.services.rules.test_promotion import EVENTS as PROMOTION_EVENTS

READY, SERVING, YIELDING, MOVING = MemberState.READY, Phase.SERVING, Phase.YIELDING, Phase.MOVING
MOVE = Asked(is_move=True)
ASKED, TAKEN = service(YIELDING, move=Step.ASKED), service(YIELDING, move=Step.TAKEN)
LONELY = service(YIELDING, **ALONE, move=Step.ASKED)
LOST = "the vault has lost its memory, and the one that serves has not given it again"
RULES = {
    "a move needs no standby here": (service(SERVING, **ALONE), MOVE, YIELDING, Yield(A)),
    "a cancelled move would need one promotion too many": (service(SERVING, promotions=HASTY), MOVE, SERVING, Refuse(ALREADY)),
    "the vault has lost its memory": (service(SERVING, is_empty=True), MOVE, SERVING, Refuse(LOST)),
    "it yields already": (ASKED, MOVE, YIELDING, Refuse("the service is yielding: no active can hand over")),
    "a handover is no move": (service(YIELDING), Taken(A), YIELDING, Refuse("1 was not asked for a last barrier")),
    "another one took it": (ASKED, Taken(B), YIELDING, Refuse("2 was not asked for a last barrier")),
    "it takes the barrier": (ASKED, Taken(A), YIELDING),
    "and stops": (TAKEN, Fenced(A), MOVING),
    "it stops without": (ASKED, Fenced(A), Phase.PROMOTING, Promote(B)),
    "too slow: it goes on, though a standby is ready": (ASKED, Elapsed(), SERVING, Keep(A)),
    "too slow and alone": (LONELY, Elapsed(), SERVING, Keep(A)),
    "too slow to be fenced after the barrier": (TAKEN, Elapsed(), SERVING, Keep(A)),
    "cancelled: it goes on": (ASKED, Unmoved(), SERVING, Keep(A)),
    "a handover is not cancelled by that": (service(YIELDING), Unmoved(), YIELDING),
    "nor is what serves": (service(SERVING), Unmoved(), SERVING),
    "the keeper has died before the barrier": (ASKED, Emptied(), SERVING, Keep(A)),
    "it ends before the barrier": (ASKED, Ended(A), Phase.FENCING, Fence(A)),
    "it faults after the barrier": (TAKEN, Faulted("a"), Phase.FENCING, Fence(A)),
    "it is silent, and a standby is ready": (ASKED, Silent(A), Phase.FENCING, Fence(A)),
    "it fails": (ASKED, Failed(A), Phase.FENCING, Fence(A)),
    "the replica is late": (service(MOVING), Elapsed(), Phase.PROMOTING, Promote(B)),
    "the replica has gone": (service(MOVING), Unmoved(), Phase.PROMOTING, Promote(B)),
    "and no standby is ready": (service(MOVING, **ALONE), Unmoved(), Phase.IDLE, Unserved("no standby is ready")),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_rules(rule: str) -> None:
    before, event, phase, *decisions = RULES[rule]
    after, decided = decide(before, event, NOW, LIMITS)
    assert (after.phase, decided) == (phase, tuple(decisions))
    assert after.move is Step.NONE or after.phase is YIELDING


@pytest.mark.parametrize("what", PROMOTION_EVENTS)
def test_no_event_but_the_deadline_promotes_a_member_while_the_replica_is_to_serve(what: str) -> None:
    after, decisions = decide(service(MOVING), PROMOTION_EVENTS[what], NOW, LIMITS)
    if what == "time":
        assert (after.phase, decisions) == (Phase.PROMOTING, (Promote(B),))
    else:
        assert after.phase is MOVING
        assert [each for each in decisions if not isinstance(each, Refuse)] == []


def test_one_that_stopped_for_a_move_serves_again_if_that_is_cancelled() -> None:
    moving, _ = decide(replace(TAKEN, members=TAKEN.members[:1]), Fenced(A), NOW, LIMITS)
    assert moving.deadline == NOW + LIMITS.promote_seconds
    ready, decisions = decide(moving, Ready(A), NOW, LIMITS)
    assert (ready.phase, decisions) == (MOVING, ()), "the replica may serve at any moment"
    promoting, decisions = decide(ready, Unmoved(), NOW, LIMITS)
    assert decisions == (Promote(A),)
    serving, _ = decide(promoting, Promoted(A), NOW, LIMITS)
    assert serving.promotions == (), "a cancelled move leaves room for failovers"


def test_no_member_begins_anew_after_the_last_barrier() -> None:
    """The vault has lost its memory, and the newest image has it."""
    emptied, _ = decide(service(MOVING), Emptied(), NOW, LIMITS)
    assert (emptied.phase, emptied.members) == (MOVING, ())
    over, decisions = decide(emptied, Elapsed(), NOW, LIMITS)
    assert (over.phase, decisions) == (Phase.IDLE, (Unserved("no process is left"),))


# -- every order of events -----------------------------------------------------------------------------------------------

EVENTS: tuple[Event, ...] = (
    MOVE, Asked(), Asked(is_leave=True), Taken(A), Taken(B), Unmoved(), Elapsed(), Emptied(), Filled(), Ready(A), Ready(B),
    Ready(C), Promoted(A), Promoted(B), Fenced(A), Fenced(B), Fenced(C), Failed(A), Failed(B), Ended(A), Ended(B), Silent(A),
    Faulted("a"), Faulted("b"),
)  # fmt: skip
LATE = NOW + 100  # after each deadline


def reached() -> Iterator[tuple[Service, frozenset[ProcessId], Event, Service, tuple[Decision, ...], frozenset[ProcessId]]]:
    """Yield each step from each state that any order of events leads to, with the processes that may write before and after.

    A process may write from its promotion until it is fenced, whatever else it reports."""
    begin = replace(service(SERVING), promotions=())
    todo, known = [(begin, frozenset({A}))], {(begin, frozenset({A}))}
    limits = replace(LIMITS, most_promotions=1000)
    while todo:
        before, writers = todo.pop()
        for event in EVENTS:
            at = LATE if isinstance(event, Elapsed) else NOW
            after, decisions = decide(before, event, at, limits)
            now = writers - {event.process} if isinstance(event, Fenced) else writers
            promoted = {each.process for each in decisions if isinstance(each, Promote)}
            yield before, now, event, after, decisions, now | promoted
            deadline = None if after.deadline is None else NOW
            same = replace(after, promotions=(), promoted_at=0.0, deadline=deadline, not_before=0.0, retry_at=0.0)
            if (same, now | promoted) not in known:
                known.add((same, now | promoted))
                todo.append((same, now | promoted))


def test_in_every_order_of_events_one_process_writes_at_most_and_none_for_good() -> None:
    phases = set()
    for before, writers, event, after, decisions, _ in reached():
        phases.add(after.phase)
        if any(isinstance(each, Promote) for each in decisions):
            assert not writers, (before, event)
        assert (after.writer is None) == (after.phase in (Phase.IDLE, MOVING)), (before, event)
        assert after.move is Step.NONE or after.phase is YIELDING, (before, event)
        if after.phase is MOVING and before.phase is not MOVING:
            assert before.move is Step.TAKEN, (before, event)
            assert event == Fenced(before.writer), (before, event)
        if after.phase is MOVING:
            assert after.deadline is not None, (before, event)
            assert not after.members or not after.is_empty, "a member would begin anew"
        if before.phase is MOVING and event == Elapsed():
            assert after.phase is not MOVING, before
        if after.phase is Phase.IDLE:
            assert successor(after) is None, (before, event)
    assert phases == set(Phase)
