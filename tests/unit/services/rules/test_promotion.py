"""The active and its successor: the table of succession.py, and every event in every phase."""

import pytest
from msgspec.structs import replace

from mpsd.model.process import ProcessId
from mpsd.model.service import MemberState, Phase
from mpsd.services.rules.promotion import decide, may_promote_at, successor, why_nobody
from mpsd.services.rules.promotion_types import (
    MOST_MEMBERS,
    Asked,
    Closing,
    Elapsed,
    Ended,
    Failed,
    Faulted,
    Fence,
    Fenced,
    Finished,
    Joined,
    Keep,
    Member,
    Placed,
    Postponed,
    Promote,
    Promoted,
    PromotionLimits,
    Ready,
    Refuse,
    Service,
    Silent,
    Unserved,
    Writing,
    Yield,
)

A, B, C, STRANGER = (ProcessId(pid, 1) for pid in (1, 2, 3, 9))
LIMITS = PromotionLimits(most_promotions=3, window_seconds=60.0, yield_seconds=10.0, promote_seconds=10.0, fence_seconds=5.0)
NOW = 1000.0
READY, WARMING, FAULTED, SILENT = MemberState.READY, MemberState.WARMING, MemberState.FAULTED, MemberState.SILENT


def service(phase: Phase, b: MemberState = READY, c: MemberState = WARMING, **facts: object) -> Service:
    """A writes, is about to, or did; B stands by, C joins after it; each in a domain of its own."""
    members = (Member(A, "a", 0, WARMING if phase is Phase.MOVING else READY), Member(B, "b", 1, b), Member(C, "c", 2, c))
    deadline = None if phase in (Phase.IDLE, Phase.SERVING) else NOW
    made = Service(phase, members, None if phase in (Phase.IDLE, Phase.MOVING) else A, deadline=deadline)
    if phase is Phase.IDLE:  # since no standby is ready
        made = replace(made, members=tuple(replace(each, standing=WARMING) for each in members))
    return replace(made, **facts)  # type: ignore[arg-type]


REFUSED = "refused"
# By phase: after which event, which phase, and which decision. Elapsed: the deadline has come, if one is set.
EVENTS = {
    "a third one joins": Joined(STRANGER, "d"),
    "one joins again": Joined(B, "b"),
    "the standby is ready": Ready(B),
    "the writer is heard of": Ready(A),
    "a stranger is ready": Ready(STRANGER),
    "a fault in the writer's domain": Faulted("a"),
    "a fault in the standby's domain": Faulted("b"),
    "a fault elsewhere": Faulted("z"),
    "the writer's domain closes": Closing("a"),
    "the standby's domain closes": Closing("b"),
    "a fault of the writer alone": Faulted("a", A),
    "a fault of somebody else there": Faulted("a", STRANGER),
    "somebody else writes": Writing(STRANGER),
    "where one lives is known": Placed(B, "e"),
    "where a stranger lives is known": Placed(STRANGER, "e"),
    "the writer ends": Ended(A),
    "the standby ends": Ended(B),
    "a stranger ends": Ended(STRANGER),
    "the writer is silent": Silent(A),
    "the standby is silent": Silent(B),
    "a stranger is silent": Silent(STRANGER),
    "a handover": Asked(),
    "a handover to the standby": Asked(B),
    "a handover to one that warms": Asked(C),
    "a handover to the writer": Asked(A),
    "the writer is fenced": Fenced(A),
    "the standby is fenced": Fenced(B),
    "the writer serves": Promoted(A),
    "the standby says it serves": Promoted(B),
    "the writer failed": Failed(A),
    "the standby says it failed": Failed(B),
    "the writer stops, of a service without an end": Finished(A),
    "time": Elapsed(),
}
STAYS = {
    "a third one joins", "the standby is ready", "the writer is heard of", "a fault in the standby's domain",
    "a fault elsewhere", "the writer's domain closes", "the standby's domain closes", "the standby ends",
    "a stranger ends", "the standby is silent", "a fault of somebody else there",
    "where one lives is known",
}  # fmt: skip
REFUSES = {
    "one joins again", "a stranger is ready", "a stranger is silent", "a handover to one that warms",
    "a handover to the writer", "the standby is fenced", "the standby says it serves", "the standby says it failed",
    "where a stranger lives is known", "the writer stops, of a service without an end",
}  # fmt: skip
FENCING = (Phase.FENCING, (Fence(A),))
NEXT = (Phase.PROMOTING, (Promote(B),))
WALKED: dict[Phase, dict[str, object]] = {
    Phase.IDLE: {
        "the standby is ready": NEXT,
        "the writer is heard of": (Phase.PROMOTING, (Promote(A),)),
        "a fault in the writer's domain": (Phase.IDLE, ()),
        "a fault of the writer alone": (Phase.IDLE, ()),
        "somebody else writes": (Phase.IDLE, ()),
        "the writer ends": (Phase.IDLE, ()),
        "the writer is silent": (Phase.IDLE, ()),
        "a handover": REFUSED,
        "a handover to the standby": REFUSED,
        "the writer is fenced": REFUSED,
        "the writer serves": REFUSED,
        "the writer failed": REFUSED,
        "time": (Phase.IDLE, ()),
    },
    Phase.PROMOTING: {
        "a fault in the writer's domain": FENCING,
        "a fault of the writer alone": FENCING,
        "somebody else writes": REFUSED,
        "the writer ends": FENCING,
        "the writer is silent": FENCING,
        "a handover": REFUSED,
        "a handover to the standby": REFUSED,
        "the writer is fenced": NEXT,
        "the writer serves": (Phase.SERVING, ()),
        "the writer failed": FENCING,
        "time": FENCING,
    },
    Phase.SERVING: {
        "a fault in the writer's domain": FENCING,
        "a fault of the writer alone": FENCING,
        "somebody else writes": REFUSED,
        "the writer ends": FENCING,
        "the writer is silent": FENCING,
        "a handover": (Phase.YIELDING, (Yield(A),)),
        "a handover to the standby": (Phase.YIELDING, (Yield(A),)),
        "the writer's domain closes": (Phase.YIELDING, (Yield(A),)),
        "the writer is fenced": NEXT,
        "the writer serves": (Phase.SERVING, ()),
        "the writer failed": FENCING,
        "time": (Phase.SERVING, ()),
    },
    Phase.YIELDING: {
        "a fault in the writer's domain": FENCING,
        "a fault of the writer alone": FENCING,
        "somebody else writes": REFUSED,
        "the writer ends": FENCING,
        "the writer is silent": FENCING,
        "a handover": REFUSED,
        "a handover to the standby": REFUSED,
        "the writer is fenced": NEXT,
        "the writer serves": (Phase.YIELDING, ()),
        "the writer failed": FENCING,
        "time": FENCING,
    },
    Phase.FENCING: {
        "a fault in the writer's domain": (Phase.FENCING, ()),
        "a fault of the writer alone": (Phase.FENCING, ()),
        "somebody else writes": REFUSED,
        "the writer ends": (Phase.FENCING, ()),
        "the writer is silent": (Phase.FENCING, ()),
        "a handover": REFUSED,
        "a handover to the standby": REFUSED,
        "the writer is fenced": NEXT,
        "the writer serves": (Phase.FENCING, ()),
        "the writer failed": (Phase.FENCING, ()),
        "time": FENCING,
    },
}


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("phase", WALKED)  # MOVING: test_promotion_moves.py
def test_every_event_in_every_phase(phase: Phase, what: str) -> None:
    before = service(phase)
    expected = WALKED[phase].get(what) or (REFUSED if what in REFUSES else (phase, ()))
    assert what in WALKED[phase] or what in STAYS | REFUSES, "not in the table"
    after, decisions = decide(before, EVENTS[what], NOW, LIMITS)
    if expected == REFUSED:
        assert after == before
        assert [type(each) for each in decisions] == [Refuse]
    else:
        assert (after.phase, decisions) == expected
        assert (after.writer is None) == (after.phase is Phase.IDLE)
        assert (after.deadline is None) == (after.phase in (Phase.IDLE, Phase.SERVING))


ALONE = {"b": WARMING}
SERVING, YIELDING, ENDING = Phase.SERVING, Phase.YIELDING, Phase.FENCING
HASTY, JUST_IN_TIME = (NOW - 59, NOW - 2, NOW - 1), (NOW - 60, NOW - 2, NOW - 1)
ALREADY = "3 promotions occurred within 60 seconds, as many as services.most_promotions allows"
TOO_MANY = "too many promotions within services.window_seconds: it is tried again when they are over"
RULES = {
    "silent, and alone: it goes on": (service(SERVING, **ALONE), Silent(A), SERVING),
    "faulted, and alone: it is fenced": (service(SERVING, **ALONE), Faulted("a"), ENDING, Fence(A)),
    "nobody to hand over to": (service(SERVING, **ALONE), Asked(), SERVING, Refuse("no standby is ready")),
    "slow to yield, and alone: it goes on": (service(YIELDING, **ALONE), Elapsed(), SERVING, Keep(A)),
    "asked, and it ends": (service(YIELDING, **ALONE), Ended(A), ENDING, Fence(A)),
    "nobody comes after": (service(ENDING, **ALONE), Fenced(A), Phase.IDLE, Unserved("no standby is ready")),
    "no process is left": (service(ENDING, members=()), Fenced(A), Phase.IDLE, Unserved("no process is left")),
    "who faulted is passed over": (service(ENDING, FAULTED, READY), Fenced(A), Phase.PROMOTING, Promote(C)),
    "and so is who is silent": (service(ENDING, SILENT, READY), Fenced(A), Phase.PROMOTING, Promote(C)),
    "the lower rank comes first": (service(ENDING, READY, READY), Fenced(A), Phase.PROMOTING, Promote(B)),
    "but for a wish": (service(ENDING, READY, READY, wish=C), Fenced(A), Phase.PROMOTING, Promote(C)),
    "if who was wished for is ready": (service(ENDING, READY, WARMING, wish=C), Fenced(A), Phase.PROMOTING, Promote(B)),
    "a lost context does not come back": (
        service(SERVING, FAULTED), Ready(B), SERVING, Refuse("a fault has cost 2 its context: it has to end"),
    ),
    "too many promotions": (
        service(ENDING, promotions=HASTY), Fenced(A), Phase.IDLE, Unserved(TOO_MANY),
    ),
    "just in time": (service(ENDING, promotions=JUST_IN_TIME), Fenced(A), Phase.PROMOTING, Promote(B)),
    "a handover would be one too many": (service(SERVING, promotions=HASTY), Asked(), SERVING, Refuse(ALREADY)),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_rules(rule: str) -> None:
    before, event, phase, *decisions = RULES[rule]
    after, decided = decide(before, event, NOW, LIMITS)
    assert (after.phase, decided) == (phase, tuple(decisions))


def test_a_silent_writer_is_fenced_as_soon_as_somebody_can_take_over() -> None:
    alone, _ = decide(service(Phase.SERVING, **ALONE), Silent(A), NOW, LIMITS)
    assert decide(alone, Ready(B), NOW, LIMITS)[1] == (Fence(A),)
    heard, _ = decide(alone, Ready(A), NOW, LIMITS)
    assert decide(heard, Ready(B), NOW, LIMITS)[1] == ()


def test_who_was_ended_is_no_member_and_who_let_go_has_to_warm_again() -> None:
    ended, _ = decide(service(Phase.FENCING), Fenced(A), NOW, LIMITS)
    assert ended.member(A) is None
    let_go, _ = decide(service(Phase.YIELDING), Fenced(A), NOW, LIMITS)
    assert let_go.member(A) == Member(A, "a", 0, WARMING)


def test_a_writer_that_is_no_member_any_more_still_is_the_writer() -> None:
    gone, decisions = decide(service(Phase.SERVING), Ended(A), NOW, LIMITS)
    assert (gone.writer, gone.member(A), decisions) == (A, None, (Fence(A),))
    assert isinstance(decide(gone, Joined(A, "a"), NOW, LIMITS)[1][0], Refuse)
    assert decide(gone, Fenced(A), NOW, LIMITS)[1] == (Promote(B),)


def test_nobody_is_promoted_beside_who_writes_already() -> None:
    held, _ = decide(service(Phase.IDLE), Writing(STRANGER), NOW, LIMITS)
    waits, decisions = decide(held, Ready(B), NOW, LIMITS)
    assert (waits.phase, waits.writer, decisions) == (Phase.IDLE, None, ())
    assert decide(waits, Fenced(STRANGER), NOW, LIMITS)[1] == (Promote(B),)


def test_who_writes_already_serves_when_it_joins() -> None:
    """As after a restart of mpsd."""
    held, _ = decide(Service(), Writing(A), NOW, LIMITS)
    other, _ = decide(held, Joined(B, "b"), NOW, LIMITS)
    serving, decisions = decide(other, Joined(A, "a"), NOW, LIMITS)
    assert (serving.phase, serving.writer, serving.holder, decisions) == (Phase.SERVING, A, None, ())
    assert serving.member(A) == Member(A, "a", 0, READY)


def test_nobody_is_promoted_before_others_may_have_been_heard_of() -> None:
    early = replace(service(Phase.IDLE), not_before=NOW + 3)
    waits, decisions = decide(early, Ready(C), NOW, LIMITS)
    assert (waits.deadline, decisions) == (NOW + 3, ())
    both, _ = decide(waits, Ready(B), NOW + 1, LIMITS)
    assert decide(both, Elapsed(), NOW + 3, LIMITS)[1] == (Promote(B),)


def test_where_one_lives_is_known_later() -> None:
    placed, _ = decide(service(Phase.SERVING), Placed(B, "e"), NOW, LIMITS)
    assert placed.member(B) == Member(B, "e", 1, READY)


def test_nothing_follows_from_a_deadline_that_has_not_come() -> None:
    for phase in (Phase.PROMOTING, Phase.YIELDING, Phase.FENCING):
        before = service(phase)
        assert decide(before, Elapsed(), NOW - 0.001, LIMITS) == (before, ())


def test_a_fence_is_told_again_for_as_long_as_it_takes() -> None:
    fencing = service(Phase.FENCING)
    for step in range(10):
        fencing, decisions = decide(fencing, Elapsed(), NOW + 5 * step, LIMITS)
        assert decisions == (Fence(A),)
        assert fencing.deadline == NOW + 5 * (step + 1)


def test_a_service_that_waits_goes_on_by_itself_when_it_may() -> None:
    waits, _ = decide(service(Phase.FENCING, promotions=(NOW - 50, NOW - 2, NOW - 1)), Fenced(A), NOW, LIMITS)
    assert waits.deadline == NOW + 10
    assert decide(waits, Elapsed(), NOW + 9.9, LIMITS)[1] == ()
    assert decide(waits, Elapsed(), NOW + 10, LIMITS)[1] == (Promote(B),)


def test_what_the_vault_cannot_keep_is_tried_again_with_the_same_one_and_counts_never() -> None:
    begun, _ = decide(service(Phase.FENCING, READY, READY, wish=C, promotions=(NOW - 50, NOW - 2)), Fenced(A), NOW, LIMITS)
    for step in range(10):
        later = NOW + step
        assert (begun.writer, begun.phase) == (C, Phase.PROMOTING)
        waits, decisions = decide(begun, Postponed(C), later, LIMITS)
        assert decisions == (Unserved("the vault could not store the next writer: mpsd tries again"),)
        assert (waits.phase, waits.writer, waits.deadline) == (Phase.IDLE, None, later + 1)
        assert waits.promotions == (NOW - 50, NOW - 2)
        assert waits.member(C) == Member(C, "c", 2, READY)
        assert decide(waits, Elapsed(), later + 0.9, LIMITS)[1] == ()
        begun, decisions = decide(waits, Elapsed(), later + 1, LIMITS)
        assert decisions == (Promote(C),)


@pytest.mark.parametrize("phase", Phase)
def test_nobody_but_who_was_told_to_begin_is_postponed(phase: Phase) -> None:
    before = service(phase)
    for process in (A, B, STRANGER):
        is_begun = phase is Phase.PROMOTING and process == A
        after, decisions = decide(before, Postponed(process), NOW, LIMITS)
        assert is_begun or (after == before and [type(each) for each in decisions] == [Refuse])


def handed_over(of: Service, to: ProcessId, at: float) -> Service:
    """Handed over by a member that yields, and warms again."""
    assert of.writer is not None
    let_go = of.writer
    for event in (Ready(to), Asked(to), Fenced(let_go), Promoted(to), Ready(let_go)):
        of, decisions = decide(of, event, at, LIMITS)
        assert not any(isinstance(each, Refuse) for each in decisions)
    assert (of.phase, of.writer) == (Phase.SERVING, to)
    return of


def test_the_first_promotion_and_those_that_were_asked_for_do_not_count() -> None:
    """A failover and a rolling change leave room for failovers."""
    first, _ = decide(service(Phase.IDLE), Ready(A), NOW, LIMITS)
    serves, _ = decide(first, Promoted(A), NOW, LIMITS)
    assert serves.promotions == ()
    for to in (B, C, A, B, C, A):
        serves = handed_over(serves, to, NOW + 1)
    assert serves.promotions == ()
    for writer, next_ in ((A, B), (B, C)):
        for event in (Ended(writer), Fenced(writer), Promoted(next_)):
            serves, _ = decide(serves, event, NOW + 2, LIMITS)
    assert (serves.writer, serves.promotions) == (C, (NOW + 2, NOW + 2))


@pytest.mark.parametrize("fails", [Failed(B), Ended(B), Silent(B), Faulted("b"), Elapsed()])
def test_one_that_was_asked_for_and_fails_counts(fails: Failed | Ended | Silent | Faulted | Elapsed) -> None:
    begun, decisions = decide(service(Phase.YIELDING, READY, READY), Fenced(A), NOW, LIMITS)
    assert decisions == (Promote(B),)
    failed, decisions = decide(begun, fails, NOW + 10, LIMITS)
    assert decisions == (Fence(B),)
    after, decisions = decide(failed, Fenced(B), NOW + 11, LIMITS)
    assert (decisions, after.promotions) == ((Promote(C),), (NOW, NOW + 11))


def test_one_that_follows_on_who_was_there_before_mpsd_counts() -> None:
    held, _ = decide(service(Phase.IDLE), Writing(STRANGER), NOW, LIMITS)
    waits, _ = decide(held, Ready(B), NOW, LIMITS)
    begun, _ = decide(waits, Fenced(STRANGER), NOW, LIMITS)
    assert decide(begun, Promoted(B), NOW, LIMITS)[0].promotions == (NOW,)


NOBODY = {
    "pid 9 writes the arena, and is not a member": Service(holder=STRANGER),
    "no process is left": Service(),
    "no standby is ready": service(Phase.IDLE),
    "the vault could not store the next writer: mpsd tries again": Service(
        members=(Member(B, "b", 0, READY),), retry_at=NOW + 1
    ),
    "others may come back who go first": Service(members=(Member(B, "b", 0, READY),), not_before=NOW + 1),
    TOO_MANY: Service(members=(Member(B, "b", 0, READY),), promotions=HASTY),
}


@pytest.mark.parametrize("why", NOBODY)
def test_why_nobody_serves(why: str) -> None:
    assert why_nobody(decide(NOBODY[why], Elapsed(), NOW, LIMITS)[0]) == why


def test_a_domain_in_which_somebody_faulted_is_second_choice() -> None:
    here, there = Member(B, "a", 0, READY), Member(C, "c", 5, READY)
    ill = Member(STRANGER, "a", 0, FAULTED)
    assert successor(Service(members=(here, there))) == here
    assert successor(Service(members=(ill, here, there))) == there
    assert successor(Service(members=(ill, here))) == here
    assert successor(Service(members=(ill,))) is None


def test_members_are_counted() -> None:
    full = Service(members=tuple(Member(ProcessId(pid, 1), "a") for pid in range(MOST_MEMBERS)))
    assert isinstance(decide(full, Joined(ProcessId(500, 1), "a"), NOW, LIMITS)[1][0], Refuse)


@pytest.mark.parametrize(("promotions", "when"), [((), NOW), ((NOW - 1,), NOW), ((NOW - 9, NOW - 8, NOW - 7), NOW + 51)])
def test_when_there_may_be_another_promotion(promotions: tuple[float, ...], when: float) -> None:
    assert may_promote_at(Service(promotions=promotions), NOW, LIMITS) == when
    assert may_promote_at(Service(promotions=promotions), NOW, replace(LIMITS, most_promotions=0)) == float("inf")
