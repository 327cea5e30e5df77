"""Writers that are killed in the middle of a kernel that counts in their arena: when is the next one admitted, and does the
counter ever move again?

Each writer is the one that was admitted when the last was killed.  They are of two users in turn, so that they are in two
domains: without company a dead client's work ends with it; with company mpsd holds its descriptors until its work has ended,
so that the others live.
"""

import random
import time
from dataclasses import asdict, dataclass

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.stage import OTHER_UID, Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 50  # of each kind
KERNEL_MS = (200, 1000)
AFTER_SECONDS = (0.02, 0.15)  # of the kernel's launch
WATCH_MS = 60
ARENA = "fence"
SEED = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """kernel_left_ms: what the killed one's kernel would still have run.  moved: the counter was seen to change."""

    has_company: bool
    admitted_ms: float
    kernel_left_ms: float
    moved: bool
    generation: int


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    chance = random.Random(SEED)
    for has_company in (False, True):
        company = [_of(stage.mpsd, "hold", uid=uid) for uid in (0, OTHER_UID)] if has_company else []
        for client in company:
            vault.said(client, "ready")
        found = []
        try:
            _kill_writers(stage, has_company, chance, found)
        finally:
            _report(stage, has_company, found, company)
        for client in company:
            vault.end(stage.mpsd, client)
        vault.remove(stage.mpsd, ARENA)


def _kill_writers(stage: Stage, has_company: bool, chance: random.Random, found: list[Trial]) -> None:
    total = stage.trials(TRIALS)
    kernel_ms = chance.uniform(*KERNEL_MS)
    writer = _writer(stage.mpsd, 0, kernel_ms)
    vault.said(writer, "running")
    for number in range(total):
        next_ms = chance.uniform(*KERNEL_MS)
        standby = _writer(stage.mpsd, 0 if number % 2 else OTHER_UID, next_ms)
        vault.said(standby, "waiting")
        time.sleep(chance.uniform(*AFTER_SECONDS))
        began_ns = _last_launch(writer, kernel_ms)
        killed_ns = vault.end(stage.mpsd, writer)
        admitted = vault.said(standby, "admitted")
        moved = bool(admitted["seen"]) or admitted["before"] != admitted["after"]
        left_ms = kernel_ms - (killed_ns - began_ns) / 1e6
        after_ms = (admitted["admitted_ns"] - killed_ns) / 1e6
        found.append(Trial(has_company, after_ms, left_ms, moved, admitted["generation"]))
        writer, kernel_ms = standby, next_ms
        vault.said(writer, "running")
    vault.end(stage.mpsd, writer)


def _writer(system: System, uid: int, kernel_ms: float) -> Client:
    times = ("--ms", f"{kernel_ms:.0f}", "--watch-ms", str(WATCH_MS))
    return _of(system, vault.CLIENT, "fence", "--arena", ARENA, "--mode", "666", *times, uid=uid)


def _of(system: System, program: str, *arguments: str, uid: int) -> Client:
    before = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
    return system.client(program, *arguments, before=before)


def _last_launch(writer: Client, kernel_ms: float) -> int:
    """Kernels follow each other without a gap from the first launch on."""
    first_ns = int(writer.events("running")[0]["monotonic_ns"])
    done = int((time.monotonic_ns() - first_ns) / (kernel_ms * 1e6))
    return first_ns + int(done * kernel_ms * 1e6)


def _report(stage: Stage, has_company: bool, found: list[Trial], company: list[Client]) -> None:
    words = "with a co-runner, so that mpsd holds it" if has_company else "alone in its domain"
    if not found:
        raise SystemFailed(f"{words}: no trial was done")
    stage.keep(words, [asdict(trial) for trial in found])
    times = [trial.admitted_ms for trial in found]
    total = len(found)
    lived = sum(client.is_running for client in company)
    generations = [trial.generation for trial in found]
    stage.add(
        f"{words}: kill to the next one's admission",
        mpsd=f"median {figures.ms(figures.median(times))}, worst {figures.ms(max(times))}, best {figures.ms(min(times))}",
        remark=f"{total} trials; the kernel had {figures.ms(figures.median([t.kernel_left_ms for t in found]))} to go (median)",
    )
    stage.add(
        f"{words}: the old writer's kernel wrote after that",
        mpsd=figures.of(sum(trial.moved for trial in found), total),
        goal=figures.of(0, total),
        met=not any(trial.moved for trial in found) and generations == sorted(set(generations)),
        remark=f"watched for {WATCH_MS} ms; {lived} of {len(company)} co-runners live",
    )
    if company:
        everybody = figures.of(len(company), len(company))
        is_met = lived == len(company)
        stage.add(f"{words}: co-runners that go on", mpsd=figures.of(lived, len(company)), goal=everybody, met=is_met)
