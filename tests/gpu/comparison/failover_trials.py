"""Trials of failover, in turns, and the rows that they come to."""

import time
from collections.abc import Callable, Mapping, Sequence

from mpsd_client import MpsdError

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import end_all
from tests.gpu.comparison.failover import (
    GOALS,
    OOB_BESIDE,
    OOB_OWN,
    STEP_GOALS,
    Check,
    Crew,
    Failover,
    beside,
    disturb,
)
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import SystemFailed

MOST_FAILED = 2  # of a way, in a row; then it is not tried again


def run_ways(
    stage: Stage,
    crew: Crew,
    ways: Sequence[str],
    total: int,
    check: Check,
    before: Callable[[], None] = lambda: None,
    who: str = "",
    leave_seconds: float = 0.0,
    goals: Mapping[str, float] = GOALS,
) -> None:
    """Try each way so often, in turns: if the section's time is short, each is tried less often. leave_seconds: the part of
    that time for later work. A way that fails twice in a row is dropped. Raises SystemFailed if there is no service to
    disturb."""
    found: dict[str, list[Failover]] = {way: [] for way in ways}
    longest = 0.0
    try:
        for way in [way for _ in range(total) for way in ways]:
            if len(found[way]) >= MOST_FAILED and all(each.why for each in found[way][-MOST_FAILED:]):
                continue
            if stage.left() < leave_seconds + 1.5 * longest:
                break
            began = time.monotonic()
            found[way].append(attempt(crew, way, check, before))
            longest = max(longest, time.monotonic() - began)
    finally:
        for way in ways:
            report(stage, way, found[way], total, who, goals)


def attempt(crew: Crew, way: str, check: Check, before: Callable[[], None] = lambda: None) -> Failover:
    """One that cannot be done is a failover that failed, and the next begins with new members, if these were disturbed."""
    active = crew.settle()
    try:
        culprit = beside(crew, active, way)
    except (SystemFailed, MpsdError, OSError) as error:
        crew.stage.say(f"{way}: {error}")
        return Failover(way, why=str(error)[:300])
    try:
        return disturb(crew, way, check, before, active, culprit)
    except (SystemFailed, MpsdError, OSError) as error:
        crew.stage.say(f"{way}: {error}")
        end_all(crew.members)
        crew.members.clear()
        return Failover(way, why=str(error)[:300])


def report(
    stage: Stage, way: str, found: Sequence[Failover], total: int, who: str = "", goals: Mapping[str, float] = GOALS
) -> None:
    stage.keep(f"{who}{way}", [{name: getattr(each, name) for name in each.__slots__} for each in found])
    good = [each for each in found if not each.why]
    same = sum(each.is_same and not each.lost and each.repeated <= 1 for each in good)
    stage.add(
        f"{who}{way}: taken over, nothing lost, at most one step repeated, the same result",
        mpsd=figures.of(same, len(found)),
        goal=figures.of(len(found), len(found)),
        met=bool(found) and same == len(found),
        remark=f"lost {sum(each.lost for each in good)}, repeated {sum(each.repeated for each in good)}"
        + (f"; {total} were wanted" if len(found) < total else "")
        + (f"; members beside it: {figures.span([each.others for each in good])}" if good else "")
        + (f"; others were starting in {count}" if (count := sum(each.starting > 0 for each in good)) else "")
        + "".join(f"; {why}" for why in dict.fromkeys(each.why for each in found if each.why)),
    )
    if not good:
        return
    split = "; ".join(
        f"{name} {_spread(good, name)}" for name in ("told", "detect", "fence", "promote", "mapped", "step", "after_xid")
    )
    _judge(stage, f"{who}{way}: fault to the end of the first useful step", way, good, "total", goals, split)
    if goals is STEP_GOALS and way in GOALS:
        _judge(stage, f"{who}{way}: fault to the launch of the first useful kernel", way, good, "launch", GOALS)


def _judge(
    stage: Stage, what: str, way: str, good: Sequence[Failover], name: str, goals: Mapping[str, float], remark: str = ""
) -> None:
    """Of a memory fault what comes after its Xid is held against the goal."""
    goal, is_memory = goals.get(way), way in (OOB_BESIDE, OOB_OWN)
    values = [(getattr(each, name), each) for each in good]
    judged = [value - (each.before_xid or 0.0) if is_memory else value for value, each in values if value is not None]
    worst = max(judged, default=None)
    stage.add(
        what + (" (goal: from the Xid on)" if is_memory and goal else ""),
        mpsd=_spread(good, name),
        goal=f"<= {goal:.0f} ms" if goal else "",
        met=None if goal is None or worst is None else worst <= goal,
        remark=remark,
    )


def _spread(found: Sequence[Failover], name: str) -> str:
    values = [value for each in found if (value := getattr(each, name)) is not None]
    return f"{figures.ms(figures.median(values))} (worst {figures.ms(max(values, default=None))})" if values else "-"
