"""The cost of being a service without faults: steps of a model in an arena, each published, with a standby, compared in turns
with those of the same model in PyTorch's memory without mpsd."""

import statistics
import time
from collections.abc import Callable

from tests.gpu.comparison import failover, figures, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.failover import Crew
from tests.gpu.comparison.llm import Llm
from tests.gpu.comparison.pytorch import has_torch
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import SystemFailed

TURNS = 30
STREAMS, TOKENS = 16, 300
SKIPPED = 40  # steps of a turn, in which prompts are still read
MOST_RATIO = 1.002
END_SECONDS = 15.0  # for the members to end


def run(stage: Stage) -> None:
    if not stage.options.is_simulated and not has_torch(stage):
        return
    system = stage.another("cost", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    system.start()
    system.warm(10)
    service, plain = Llm(stage, system, "cost", slots=STREAMS), Llm(stage, system, "plain", slots=STREAMS)
    crew = Crew(stage, system, "cost", service.member)
    alone = plain.member("--memory", "plain")
    try:
        active = crew.settle()
        vault.said(alone, "promoted", failover.SERVING_SECONDS)
        turns = _turns(stage, lambda: (_turn(service, active), _turn(plain, alone)))
    finally:
        end_all([alone])
        crew.end()
        service.end()
        plain.end()
    _report(stage, turns)
    vault.remove(system, "cost")
    system.quit()


def _turns(stage: Stage, turn: Callable[[], tuple[float, float]]) -> list[tuple[float, float]]:
    """Take turns, as many as the time allows."""
    turns: list[tuple[float, float]] = []
    longest = 0.0
    while len(turns) < stage.trials(TURNS) and stage.left() > END_SECONDS + 1.5 * longest:
        began = time.monotonic()
        turns.append(turn())
        longest = max(longest, time.monotonic() - began)
    if not turns:
        raise SystemFailed("no time was left for a single turn")
    return turns


def _turn(llm: Llm, member: Client) -> float:
    """Milliseconds a step, when all prompts have been read."""
    before = member.events("step")
    llm.load("turn", requests=STREAMS, tokens=TOKENS).result()
    steps = member.events("step")[len(before) :][SKIPPED // 10 :]
    if len(steps) < 2:
        raise SystemFailed(f"a turn has {len(steps)} reports of steps: {member.trouble}")
    first, last = steps[0], steps[-1]
    return (last["monotonic_ns"] - first["monotonic_ns"]) / 1e6 / (int(last["n"]) - int(first["n"]))


def _report(stage: Stage, turns: list[tuple[float, float]]) -> None:
    stage.keep("turns, ms a step", turns)
    ratio = statistics.median(ours / theirs for ours, theirs in turns)
    stage.add(
        f"a decode step of {STREAMS} streams, as a service with a standby beside one that is neither ({len(turns)} turns each)",
        vendor=f"{figures.median([theirs for _, theirs in turns]):.3f} ms",
        mpsd=f"{figures.median([ours for ours, _ in turns]):.3f} ms",
        ratio=f"{ratio:.4f}",
        goal=f"<= {MOST_RATIO}",
        met=ratio <= MOST_RATIO,
        remark=figures.pair_range([ours for ours, _ in turns], [theirs for _, theirs in turns]),
    )
