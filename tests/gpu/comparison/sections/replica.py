"""Two GPUs: a service on the first one, and its replica on the second, which nothing here lets serve: no program can make the
kernel log an Xid."""

import sys
import time
from pathlib import Path

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.replicas import EVERY, MOST_AGE, images_in_memory, replica_age
from tests.gpu.comparison.stage import ROOT, Stage

PROGRAM = ROOT / "tests/integration/replica_member.py"
NAME = "replicated"
READY_SECONDS, FOLLOW_SECONDS = 60.0, 30.0


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    if not (gpus := stage.two_gpus("a replica on a second GPU")):
        return
    seconds = 6.0 if stage.options.is_simulated else FOLLOW_SECONDS
    with images_in_memory(stage) as directory:
        _follow(stage, gpus, directory, seconds)


def _member(stage: Stage, gpu: str, directory: Path) -> Client:
    python = Path(sys.executable) if stage.options.is_simulated else stage.options.python
    argv = [str(python), str(PROGRAM), NAME, str(directory), "0", str(EVERY)]
    return stage.mpsd.spawn(argv, stage.mpsd.environment() | {"CUDA_VISIBLE_DEVICES": gpu})


def _follow(stage: Stage, gpus: list[str], directory: Path, seconds: float) -> None:
    active = _member(stage, gpus[0], directory)
    active.wait_for("step", READY_SECONDS)
    far = _member(stage, gpus[1], directory)
    far.wait_for("has", READY_SECONDS)
    ages, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.25)
        ages.append(replica_age(stage.mpsd, NAME))
    looks = far.events("has")
    right = sum(each["right"] for each in looks)
    stage.keep("replica", {"ages": ages})
    stage.add(
        "the replica on GPU 1: each look finds a step and the memory of that step",
        mpsd=figures.of(right, len(looks)), goal="all", met=right == len(looks) > 3,
    )  # fmt: skip
    stage.add(
        "its age, most", mpsd=f"{max(ages):.1f} s", goal=f"<= {MOST_AGE:g} s", met=max(ages) <= MOST_AGE
    )  # fmt: skip
    for client in (active, far):
        client.signal(9)
        client.wait(READY_SECONDS)
    stage.mpsd.clients.clear()
