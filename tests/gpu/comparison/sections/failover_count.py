"""The smallest service, disturbed in every possible way: the time until the standby's first useful step, and the losses."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.gpu.comparison import failover, failover_trials, figures, processes, vault
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.failover import Crew, Outcome
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS, KEEPER_TRIALS = 10, 5
NOTICE_SECONDS, GIVE_SECONDS, WATCHED_SECONDS = 5.0, 15.0, 3.0
SERVICE = "count"
PROGRAM = ROOT / "clients/python/examples/count_service.py"
STEPS, PACE, HEARTBEAT = 10**9, "0.002", "0.25"
sys.path.insert(0, str(PROGRAM.parent))


def run(stage: Stage) -> None:
    system = stage.another("count", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    system.start()
    system.warm(10)
    crew = Crew(stage, system, SERVICE, lambda: start(stage, system))
    try:
        _watch(stage, crew)
        failover_trials.run_ways(stage, crew, failover.asked(failover.WAYS), stage.trials(TRIALS), compare)
        _lose_keepers(stage, crew, stage.trials(KEEPER_TRIALS))
    finally:
        crew.end()
    vault.remove(system, SERVICE)
    system.quit()


def _watch(stage: Stage, crew: Crew) -> None:
    """What it costs to look at the kernel log all the time, which mpsd does while a standby is ready."""
    crew.settle()
    mpsd = crew.system.pid()
    before, began = processes.cpu_seconds(mpsd), time.monotonic()
    time.sleep(WATCHED_SECONDS)
    spent = (processes.cpu_seconds(mpsd) - before) / (time.monotonic() - began)
    stage.add("mpsd's processor time while a standby is ready and nothing happens", mpsd=f"{100 * spent:.1f} % of a core")


def _lose_keepers(stage: Stage, crew: Crew, wanted: int) -> None:
    """The vault's keeper is killed under an active that was promoted: it gives again what it has itself imported.  Then that
    active is killed, and the next one goes on with it."""
    given: list[float] = []
    good, why = 0, ""
    for _ in range(wanted):
        crew.settle()
        with failover.heard(crew.system) as listener:
            began = time.monotonic()
            for pid in vault.keeper_pids(crew.system):
                os.kill(pid, signal.SIGKILL)
            is_lost = _until(lambda: bool(listener.events("service.unprotected")), NOTICE_SECONDS)
            is_given = _until(lambda: not crew.view().protection, GIVE_SECONDS)
            took_ms = 1e3 * (time.monotonic() - began)
        if not is_lost or not is_given:
            why = f"noticed: {is_lost}; given again: {is_given}; {crew.view().protection}"
            break
        given.append(took_ms)
        found = failover_trials.attempt(crew, failover.KILLED, compare)
        good += not found.why and found.is_same and not found.lost
        why = found.why or why
    stage.add(
        "the vault's keeper killed, all given again by an active that had imported it, and that one killed: nothing lost",
        mpsd=figures.of(good, wanted),
        goal=figures.of(wanted, wanted),
        met=good == wanted,
        remark=f"protected after {figures.ms(figures.median(given))} (worst {figures.ms(max(given, default=None))}) {why}",
    )


def _until(look: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def start(stage: Stage, system: System) -> Client:
    words = ("--service", SERVICE, "--steps", str(STEPS), "--pace", PACE, "--every", "1", "--heartbeat", HEARTBEAT)
    return member(stage, system, PROGRAM, *words)


def member(stage: Stage, system: System, program: Path, *words: str) -> Client:
    """Of mpsd's own Python, without PyTorch."""
    env = {**system.environment(), "PYTHONPATH": str(ROOT / "clients/python")}
    return system.spawn([str(stage.options.python), str(failover.FAULTING), str(program), *words], env)


def compare(before: Client, after: Client) -> Outcome:
    """Check that each acknowledged step is in the record, and that every value is that of an undisturbed run."""
    told = [*before.events("step"), *after.events("step")]
    if not told:
        raise SystemFailed("no step was told of")
    first = int(vault.said(after, "first_step")["step"])
    last = max((int(step["n"]) for step in before.events("step")), default=0)
    values = {int(step["n"]): int(step["value"]) for step in told}
    is_same = len(values) == len({(step["n"], step["value"]) for step in told}) and _are_right(values)
    return Outcome(lost=max(0, last - (first - 1)), repeated=int(first == last), is_same=is_same)


def _are_right(values: dict[int, int]) -> bool:
    from count_service import next_of

    steps = sorted(values)
    return all(values[b] == next_of(values[a]) for a, b in itertools.pairwise(steps) if b == a + 1)
