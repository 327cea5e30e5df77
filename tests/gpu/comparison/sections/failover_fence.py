"""Never two writers: a member's kernels count in the arena without a pause; the promoted member watches whether that
continues."""

from dataclasses import asdict, dataclass
from functools import partial

from tests.gpu.comparison import failover, failover_trials, figures, vault
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.failover import Crew, Outcome
from tests.gpu.comparison.sections.failover_count import member
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System

TRIALS = 10
SERVICE = "tick"
PROGRAM = ROOT / "tests/gpu/tick_member.py"
KERNELS = ROOT / "tests/clients/kernels.ptx"
WAYS = (failover.TRAP_BESIDE, failover.OOB_BESIDE, failover.KILLED, failover.DESERTED)
KERNEL_MS = "500"


@dataclass(frozen=True, slots=True)
class Watched:
    way: str
    changes: int


def run(stage: Stage) -> None:
    system = stage.another("tick", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    system.start()
    system.warm(10)
    crew = Crew(stage, system, SERVICE, lambda: start(stage, system))
    found: list[Watched] = []
    try:
        for number, way in enumerate(WAYS):
            leave_seconds = stage.left() * (1 - 1 / (len(WAYS) - number))
            check = partial(watch, way, found)
            failover_trials.run_ways(stage, crew, (way,), stage.trials(TRIALS), check, leave_seconds=leave_seconds, goals={})
    finally:
        crew.end()
        stage.keep("watched", [asdict(each) for each in found])
        for way in WAYS:
            changes = [each.changes for each in found if each.way == way]
            stage.add(
                f"{way}: the one before wrote after the promotion",
                mpsd=figures.of(sum(count > 0 for count in changes), len(changes)),
                goal=figures.of(0, len(changes)),
                met=bool(changes) and not any(changes),
                remark=f"its kernels count without a pause; watched for 60 ms; {sum(changes)} changes seen",
            )
    vault.remove(system, SERVICE)
    system.quit()


def start(stage: Stage, system: System) -> Client:
    return member(stage, system, PROGRAM, "--service", SERVICE, "--kernels", str(KERNELS), "--ms", KERNEL_MS)


def watch(way: str, found: list[Watched], before: Client, after: Client) -> Outcome:
    """Record how often the word changed. The first step comes after the watch, so its time is no measure."""
    found.append(Watched(way, int(vault.said(after, "watched")["changes"])))
    return Outcome(lost=0, repeated=0, is_same=True)
