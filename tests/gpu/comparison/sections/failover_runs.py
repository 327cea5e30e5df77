"""A diffusion sampler and a training run, disturbed in the middle: image and weights are those of an undisturbed run."""

import itertools
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.gpu.comparison import failover, failover_trials, vault
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.failover import Crew, Outcome
from tests.gpu.comparison.pytorch import has_torch, python_path
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 10
WAYS = (failover.KILLED, failover.TRAP_BESIDE, failover.TRAP_OWN, failover.OOB_BESIDE)
EXAMPLES = ROOT / "clients/python/examples"
RUN_SECONDS = 90.0
MOST_FAILED = 3  # after so many failed trials the section ends
# A run is well under way when its standby is ready, some seconds after its first step, and must not be over by then.
IMAGE_STEPS, IMAGE_STRUCK_AT = 600, 100
TRAINING_STEPS, TRAINING_STRUCK_AT = 150, 5


@dataclass(frozen=True, slots=True)
class _Kind:
    """counted_from: if "step" reports n, the steps n and below are done. early: so many reported steps may not count yet. same:
    the fields of its "end" that must equal those of an undisturbed run."""

    service: str
    program: Path
    words: tuple[str, ...]
    struck_at: int
    counted_from: int
    early: int
    same: tuple[str, ...]


def run_diffusion(stage: Stage) -> None:
    image = str(stage.work / "image.png")
    words = ("--steps", str(IMAGE_STEPS), "--seed", "586", "--report-every", "10", "--out", image)
    _run(stage, _Kind("dit", EXAMPLES / "diffusion.py", words, IMAGE_STRUCK_AT, 0, 0, ("digest", "latents")))


def run_training(stage: Stage) -> None:
    words = ("--steps", str(TRAINING_STEPS), "--seed", "586")
    _run(stage, _Kind("resnet", EXAMPLES / "train_resnet.py", words, TRAINING_STRUCK_AT, 1, 1, ("digest",)))


def _run(stage: Stage, kind: _Kind) -> None:
    """Run the trials; each is a separate run from the first step to the last."""
    if not has_torch(stage):
        return
    service, program, words = kind.service, kind.program, kind.words
    system = stage.another(service, stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    system.start()
    system.warm(10)
    plain = member(stage, system, program, *words, "--memory", "plain")
    undisturbed = vault.said(plain, "end", RUN_SECONDS)
    plain.wait(vault.EVENT_SECONDS)
    system.clients.remove(plain)

    def check(before: Client, after: Client) -> Outcome:
        end = vault.said(after, "end", RUN_SECONDS)
        first = int(vault.said(after, "first_step")["step"])
        told = max((int(step["n"]) + kind.counted_from - kind.early for step in before.events("step")), default=0)
        return Outcome(max(0, told - first), 0, all(end[name] == undisturbed[name] for name in kind.same))

    found: dict[str, list[failover.Failover]] = {way: [] for way in WAYS}
    longest = 0.0
    try:
        for way in itertools.islice(itertools.cycle(WAYS), stage.trials(TRIALS)):
            failed = [each.why for trials in found.values() for each in trials if each.why]
            if stage.left() < 1.3 * longest or len(failed) >= MOST_FAILED:
                break
            began = time.monotonic()
            crew = Crew(stage, system, service, partial(member, stage, system, program, *words, "--service", service))
            found[way].append(_disturbed(crew, way, check, kind.struck_at))
            crew.end()
            vault.remove(system, service)
            longest = max(longest, time.monotonic() - began)
    finally:
        for way, trials in found.items():
            if trials:
                failover_trials.report(stage, way, trials, len(trials), f"{service}: ", failover.STEP_GOALS)
    system.quit()


def _disturbed(crew: Crew, way: str, check: failover.Check, struck_at: int) -> failover.Failover:
    try:
        crew.settle()
        crew.wanted = 1  # do not replace the disturbed member
        return failover_trials.attempt(crew, way, check, partial(_wait_for_step, crew, struck_at))
    except SystemFailed as error:
        return failover.Failover(way, why=str(error)[:300])


def member(stage: Stage, system: System, program: Path, *words: str) -> Client:
    """Start a member with PyTorch's Python; it faults on request."""
    env = {**system.environment(), "PYTHONPATH": python_path(stage)}
    return system.spawn([str(stage.options.torch_python), str(failover.FAULTING), str(program), *words], env)


def _wait_for_step(crew: Crew, number: int) -> None:
    """Of the active.  Raises SystemFailed when it ends before."""
    client, since_ns = crew.active(), 0
    assert client is not None
    while (step := client.wait_for("step", RUN_SECONDS, since_ns)) is not None and int(step["n"]) < number:
        since_ns = int(step["monotonic_ns"]) + 1
    if step is None:
        raise SystemFailed(f"step {number} was never reached: {client.trouble}"[:300])
