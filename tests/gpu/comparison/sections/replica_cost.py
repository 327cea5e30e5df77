"""Two GPUs: what a replica costs the process that writes the arena, and how old it is, by bytes written per second.

Runs of the writer without images, and with an image each second and a replica on the other GPU, take turns.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.replicas import EVERY, MOST_AGE, images_in_memory, replica_age
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import SystemFailed

PROGRAM = ROOT / "tests/gpu/replica_writer.py"
NAME = "written"
GIB = 20
PERMILLES = (10, 50, 250)  # of the arena's bytes, each second: 0.2, 1.1 and 5.4 GB/s
JUDGED = 50  # the goal is of 1 GB/s
PAIRS = 3
READY_SECONDS, LOOK_SECONDS = 60.0, 0.1
MEASURED = 10  # seconds
MOST_COST = 0.02


@dataclass(slots=True)
class _Found:
    """Of one rate: steps per second alone and with a replica, bytes written per second, ages in seconds."""

    alone: list[float] = field(default_factory=list)
    replicated: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    if not (gpus := stage.two_gpus("a replica's cost")):
        return
    chosen = [int(each) for each in os.environ.get("REPLICA_PERMILLE", "").split(",") if each]
    for permille in chosen or (PERMILLES[1:2] if stage.options.is_simulated else PERMILLES):
        found = _Found()
        with images_in_memory(stage) as directory:
            for _ in range(stage.trials(PAIRS)):
                _measure(stage, gpus, permille, None, found)
                _measure(stage, gpus, permille, directory, found)
        _report(stage, permille, found)


def _measure(stage: Stage, gpus: list[str], permille: int, directory: Path | None, found: _Found) -> None:
    size = GIB * vault.unit(stage)
    name = f"{NAME}-{len(found.alone)}-{permille}-{int(directory is not None)}"  # a killed process holds its arena for a moment
    words = [name, str(size), str(size * permille // 1000), *([str(directory), str(EVERY)] if directory else [])]
    members = [_member(stage, gpus[0], words)]
    try:
        _wait(members, "the writer to serve", lambda: bool(members[0].events("serves")))
        if directory:
            members.append(_member(stage, gpus[1], words))
            _wait(members, "a replica", lambda: replica_age(stage.mpsd, name) <= MOST_AGE)
        since = len(members[0].events("rate")) + 1  # one that has begun is left out
        seconds = 2 if stage.options.is_simulated else MEASURED

        def has_figures() -> bool:
            if directory:
                found.ages.append(replica_age(stage.mpsd, name))
            return len(members[0].events("rate")) >= since + seconds

        _wait(members, "figures", has_figures)
        rates = members[0].events("rate")[since:]
        (found.replicated if directory else found.alone).append(figures.median([float(each["steps"]) for each in rates]) or 0.0)
        found.written += [float(each["written"]) for each in rates]
    finally:
        for client in members:
            client.signal(9)
            client.wait(READY_SECONDS)
        stage.mpsd.clients.clear()
        vault.remove(stage.mpsd, name)


def _member(stage: Stage, gpu: str, words: list[str]) -> Client:
    variables = {"CUDA_VISIBLE_DEVICES": gpu, "PYTHONPATH": str(ROOT)}
    return stage.mpsd.spawn([str(stage.options.python), str(PROGRAM), *words], stage.mpsd.environment() | variables)


def _wait(members: list[Client], what: str, is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + READY_SECONDS
    while not is_done():
        if time.monotonic() > end or not all(each.is_running for each in members):
            raise SystemFailed(f"no {what}: {'; '.join(each.trouble for each in members)}"[:300])
        time.sleep(LOOK_SECONDS)


def _report(stage: Stage, permille: int, found: _Found) -> None:
    alone, replicated, written = (figures.median(each) or 0.0 for each in (found.alone, found.replicated, found.written))
    size = vault.size_text(stage, GIB * vault.unit(stage))
    what = f"{size}, {permille / 10:g} % ({written / 1e9:.1f} GB) written each second"
    stage.keep(what, {"alone": found.alone, "replicated": found.replicated, "written": found.written, "ages": found.ages})
    ratio = replicated / alone if alone else 0.0
    is_judged = permille == JUDGED and not stage.options.is_simulated
    stage.add(
        f"{what}: the writer's speed with a replica",
        mpsd=f"{ratio:.3f}",
        goal=f">= {1 - MOST_COST:g}" if permille == JUDGED else "",
        met=ratio >= 1 - MOST_COST if is_judged else None,
        remark=f"steps a second: {', '.join(f'{a:.0f} {b:.0f}' for a, b in zip(found.alone, found.replicated, strict=True))}",
    )
    median, worst = figures.median(found.ages) or 0.0, max(found.ages)
    stage.add(f"{what}: the replica's age", mpsd=f"median {median:.1f} s, most {worst:.1f} s", remark=f"n = {len(found.ages)}")
