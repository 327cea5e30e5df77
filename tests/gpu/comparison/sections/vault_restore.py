"""Restoring an image: how long, what bounds it, and how fast it is with other constants than mpsd/images/imager has."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Event
from tests.gpu.comparison.stage import ROOT, Stage

PROGRAM = ROOT / "tests/gpu/image_restore.py"
GIB = 20
TRIALS = 3
SECONDS = 115.0
LEAST_RATE = 45.0  # GB/s


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    directory = Path(os.environ.get("IMAGES_DIRECTORY", stage.work)) / "restore-images"
    size = int(os.environ.get("IMAGES_GIB", GIB)) * vault.unit(stage)
    trials = 1 if stage.options.is_simulated else TRIALS
    words = [str(stage.options.python), str(PROGRAM), str(size), str(directory), str(trials)]
    client = stage.mpsd.spawn(words, {**stage.mpsd.environment(), "PYTHONPATH": str(ROOT)})
    status = client.wait(min(stage.left(), SECONDS))
    stage.mpsd.clients.remove(client)
    vault.remove(stage.mpsd, "measured", "restored")
    shutil.rmtree(directory, ignore_errors=True)
    for kind in ("taken", "restored", "started", "read", "copied", "filled"):
        stage.keep(kind, client.events(kind))
    if restored := client.events("restored"):
        _report(stage, size, restored)
    if starts := [event["seconds"] for event in client.events("started")]:
        words = [f"{name} {' '.join(f'{each[name] * 1e3:.0f}' for each in starts)}" for name in starts[0]]
        whole = sum(starts[-1].values()) * 1e3
        stage.add("the imager's start, one after the other, ms", mpsd=f"{whole:.0f}", remark="; ".join(words))
    for event in client.events("read"):
        stage.add(f"{event['threads']} threads read alone: {event['way']}, GB/s", mpsd=_rates(size, event))
    for event in client.events("copied"):
        stage.add(f"{event['threads']} streams copy alone, {event['kib']} KiB at a time, GB/s", mpsd=_rates(size, event))
    for event in client.events("filled"):
        what = f"{event['threads']} threads, buffers of {event['kib']} KiB, pieces of {event['blocks']} blocks: GB/s"
        stage.add(what, mpsd=_rates(size, event), remark=f"made in {event['made_s'] * 1e3:.0f} ms")
    if status or not client.events("end"):
        stage.add("restoring, measured", met=False, remark=client.trouble[:300])


def _rates(size: int, event: Event) -> str:
    return ", ".join(f"{size / 1e9 / seconds:.1f}" for seconds in event["seconds"])


def _report(stage: Stage, size: int, found: Sequence[Event]) -> None:
    """Report restorations as a program sees them."""
    rates = [size / 1e9 / (event["all_s"] - event["opened_s"]) for event in found]
    rate, is_right = figures.median(rates) or 0.0, all(event["is_right"] for event in found)
    is_judged = not stage.options.is_simulated
    ends = [" ".join(f"{event[f'{name}_s']:.2f}" for name in ("opened", "first", "eighth", "all")) for event in found]
    stage.add(
        f"{vault.size_text(stage, size)} restored after the arena is open, GB/s",
        mpsd=", ".join(f"{each:.1f}" for each in rates),
        goal=f">= {LEAST_RATE:g}, the right bytes" if is_judged else "the right bytes",
        met=is_right and (not is_judged or rate >= LEAST_RATE),
        remark=f"seconds until open, first block, first eighth, all: {'; '.join(ends)}",
    )
