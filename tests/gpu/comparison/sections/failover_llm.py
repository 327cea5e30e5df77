"""A language model that serves streams, disturbed: no connection drops, no token is lost, all equal those of an undisturbed
run.

Two alternatives for comparison: the process is started again, and reads all prompts again (cold); a spare process, with its
weights in host memory and no context in MPS, loads them (sleeping).
"""

import os
import time
from collections.abc import Callable, Sequence

from tests.gpu.comparison import failover, failover_trials, figures, trials, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.failover import Crew, Outcome
from tests.gpu.comparison.llm import NOWHERE, Llm, Load
from tests.gpu.comparison.pytorch import has_torch
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS, BASELINE_TRIALS = 10, 2
STREAMS, TOKENS, FEW_TOKENS = 8, 600, 150  # few: on the simulator
STRUCK_AFTER = 40  # steps of the load
SERVICE = "llm"
MEMBERS = int(os.environ.get("FAILOVER_MEMBERS", "6"))
FEWEST = (MEMBERS + 1) // 2  # PyTorch takes ten seconds to start: start several when few are left
CALM_SECONDS = 25.0
STEP_SECONDS = 20.0  # without any
BASELINE_SECONDS = 18.0  # of one trial of one of the four
SHAPES = os.environ.get("FAILOVER_SHAPES", "0.5B").split(",")
_LEFT_OUT = (failover.STOPPED, failover.OOB_OWN)  # failover_count has these
WAYS = failover.asked([way for way in failover.WAYS if way not in _LEFT_OUT])


def run(stage: Stage) -> None:
    if not stage.options.is_simulated and not has_torch(stage):
        return
    for number, shape in enumerate(SHAPES):
        leave_seconds = stage.left() * (1 - 1 / (len(SHAPES) - number))
        system = stage.another("llm", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
        system.start()
        system.warm(10)
        llm = Llm(stage, system, SERVICE, shape)
        crew = Crew(stage, system, SERVICE, llm.member, wanted=1)
        try:
            _serve(stage, crew, llm, shape, leave_seconds)
        finally:
            crew.end()
            llm.end()
        vault.remove(system, SERVICE)
        system.quit()
        if not stage.options.is_simulated and not failover.ASKED_WAYS:
            _baselines(stage, shape)


def _serve(stage: Stage, crew: Crew, llm: Llm, shape: str, leave_seconds: float) -> None:
    crew.settle()
    alone = vault.free_bytes(crew.system)
    crew.wanted = 2
    crew.settle()
    stage.add(
        f"{shape}: what a standby takes of the GPU's memory, context and server included",
        mpsd=f"{(alone - vault.free_bytes(crew.system)) / (1 << 20):.0f} MiB",
        remark="weights and cache are the active's",
    )
    if not stage.options.is_simulated and MEMBERS > 2:
        crew.wanted, crew.fewest, crew.calm = MEMBERS, FEWEST, CALM_SECONDS
        leave_seconds += 4 * BASELINE_SECONDS * stage.trials(BASELINE_TRIALS)
    tokens = FEW_TOKENS if stage.options.is_simulated else TOKENS
    undisturbed = llm.load("undisturbed", requests=STREAMS, tokens=tokens).result()
    stage.keep(f"{shape}: undisturbed", {name: undisturbed[name] for name in ("tokens_per_second", "worst_gap_ms", "digest")})
    trial = _Trial(stage, crew, llm, tokens, str(undisturbed["digest"]))
    total = stage.trials(TRIALS)
    try:
        check, begin, goals = trial.check, trial.begin, failover.STEP_GOALS
        failover_trials.run_ways(stage, crew, WAYS, total, check, begin, f"{shape}: ", leave_seconds, goals)
    finally:
        trial.end()
    gaps = trial.gaps_ms
    stage.add(
        f"{shape}: the longest time between two tokens of a stream, in a trial",
        mpsd=f"median {figures.ms(figures.median(gaps))}, worst {figures.ms(max(gaps, default=None))}",
        remark=f"undisturbed {undisturbed['worst_gap_ms']} ms; {undisturbed['tokens_per_second']} tokens/s",
    )


class _Trial:
    """Streams that run during the disturbance. Guards the tokens that they received."""

    def __init__(self, stage: Stage, crew: Crew, llm: Llm, tokens: int, digest: str) -> None:
        self._stage, self._crew, self._llm, self._tokens, self._digest = stage, crew, llm, tokens, digest
        self._counts: dict[str, int] = {}
        self._load: Load | None = None
        self.gaps_ms: list[float] = []

    def begin(self) -> None:
        active = self._crew.active()
        assert active is not None
        self.end()
        self._counts = self._llm.counts()
        self._load = self._llm.load("disturbed", requests=STREAMS, tokens=self._tokens)
        wait_for_steps(active, STRUCK_AFTER)

    def end(self) -> None:
        """The load of a trial that failed."""
        if self._load is not None:
            self._load.end()

    def check(self, before: Client, after: Client) -> Outcome:
        assert self._load is not None
        found, counts = self._load.result(), self._llm.counts()
        self.gaps_ms.append(float(found["worst_gap_ms"]))
        grown = {name: counts[name] - self._counts.get(name, 0) for name in ("again", "differing", "unfinished")}
        if found["dropped"] or found["wrong"] or grown["differing"]:
            self._stage.say(f"dropped {found['dropped']}, wrong {found['wrong']}, differing {grown['differing']}")
        is_same = found["digest"] == self._digest and not (found["dropped"] or found["wrong"] or grown["differing"])
        return Outcome(lost=len(after.events("lost")), repeated=-(-grown["again"] // STREAMS), is_same=is_same)


def wait_for_steps(client: Client, count: int) -> None:
    """So many more than now.  Raises SystemFailed."""
    since_ns, first = time.monotonic_ns(), None
    while (step := client.wait_for("step", STEP_SECONDS, since_ns)) is not None:
        first = int(step["n"]) if first is None else first
        if int(step["n"]) >= first + count:
            break
        since_ns = int(step["monotonic_ns"]) + 1
    if step is None:
        raise SystemFailed(f"no steps are made: {client.trouble}"[:300])


# -- without -------------------------------------------------------------------------------------------------------------


Strike = Callable[[Client], int]  # returns the time of the fault
Prepare = Callable[[System], Strike]  # before the load begins


def _baselines(stage: Stage, shape: str) -> None:
    """On the vendor's MPS, with the same load."""
    system = stage.vendor
    system.renew()
    llm = Llm(stage, system, "plain", shape)
    try:
        for way, prepare in ((failover.KILLED, _kill), (failover.TRAP_BESIDE, _trap)):
            for what, begin in (("cold restart", _cold), ("a kept process that sleeps", _sleeping)):
                found: list[float | None] = []
                while len(found) < stage.trials(BASELINE_TRIALS) and (not found or stage.left() > BASELINE_SECONDS):
                    found.append(begin(system, llm, prepare))
                _add(stage, f"{shape}: {way}, {what}", found)
    finally:
        llm.end()


def _cold(system: System, llm: Llm, prepare: Prepare) -> float | None:
    first = llm.member("--memory", "plain")
    vault.said(first, "promoted", failover.SERVING_SECONDS)
    return _struck(system, llm, first, prepare, lambda: llm.member("--memory", "plain"))


def _sleeping(system: System, llm: Llm, prepare: Prepare) -> float | None:
    first = llm.member("--memory", "plain")
    sleeper = llm.member("--memory", "host", has_input=True, environment={"CUDA_MPS_PIPE_DIRECTORY": NOWHERE})
    vault.said(sleeper, "sleeping", failover.SERVING_SECONDS)
    vault.said(first, "promoted", failover.SERVING_SECONDS)

    def wake() -> Client:
        sleeper.tell("go")
        return sleeper

    return _struck(system, llm, first, prepare, wake)


def _struck(system: System, llm: Llm, first: Client, prepare: Prepare, begin: Callable[[], Client]) -> float | None:
    """Return the milliseconds from the fault to the first useful step of the next active. None: no member served again."""
    strike = prepare(system)
    load = llm.load("baseline", requests=STREAMS, tokens=TOKENS)
    wait_for_steps(first, STRUCK_AFTER)
    began_ns = strike(first)
    if first.wait(failover.FAILOVER_SECONDS) is None:
        end_all([first])
    found = None
    deadline = time.monotonic() + failover.SERVING_SECONDS
    second = begin()
    while (step := second.wait_for("first_step", failover.SERVING_SECONDS)) is None and time.monotonic() < deadline:
        second = begin()  # a server in FAULT refuses newcomers until its last client has ended
    if step is not None:
        found = (int(step["monotonic_ns"]) - began_ns) / 1e6
        load.result()
    end_all([each for each in system.clients if each is not llm.front])
    system.clients[:] = [llm.front]
    return found


def _kill(system: System) -> Strike:
    def strike(client: Client) -> int:
        began_ns = time.monotonic_ns()
        client.signal(9)
        return began_ns

    return strike


def _trap(system: System) -> Strike:
    culprit = trials.started(system, "faulter", "trap", "--gate", "--linger", "0.2", has_input=True)

    def strike(client: Client) -> int:
        culprit.release()
        return int(vault.said(culprit, "fault", failover.FAILOVER_SECONDS)["monotonic_ns"])

    return strike


def _add(stage: Stage, what: str, found: Sequence[float | None]) -> None:
    known = [each for each in found if each is not None]
    stage.keep(what, list(found))
    stage.add(
        f"{what}: fault to the first useful step",
        vendor=f"{figures.ms(figures.median(known))} (worst {figures.ms(max(known, default=None))})",
        remark=f"{figures.of(len(known), len(found))} served again; all prompts are read again, with what was made of them",
    )
