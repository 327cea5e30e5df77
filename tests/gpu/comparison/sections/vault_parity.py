"""Parity of arenas on two GPUs beside an image of both, in one run: time, stall and bytes; then one is lost and rebuilt."""

import os
import shutil
from pathlib import Path

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.stage import ROOT, Stage

PROGRAM = ROOT / "tests/gpu/parity_client.py"
GIB = 40  # of each arena; the directory needs twice as much for the image
TRIALS = 10
SECONDS = 60.0  # most, of one trial


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    if not stage.two_gpus("parity"):
        return
    trials = 2 if stage.options.is_simulated else stage.trials(TRIALS)
    size = int(os.environ.get("PARITY_GIB", GIB)) * vault.unit(stage)
    directory = Path(os.environ.get("IMAGES_DIRECTORY", stage.work)) / "parity"
    words = [str(stage.options.python), str(PROGRAM), str(size), str(trials), str(directory)]
    client = stage.mpsd.spawn(words, {**stage.mpsd.environment(), "PYTHONPATH": str(ROOT)})
    client.wait(min(stage.left(), SECONDS * trials))
    taken, rebuilt = client.events("taken"), client.events("rebuilt")
    stage.mpsd.clients.remove(client)
    vault.remove(stage.mpsd, "parity-0", "parity-1")
    shutil.rmtree(directory, ignore_errors=True)
    stage.keep("parity", {"taken": taken, "rebuilt": rebuilt})
    what = f"2 arenas of {vault.size_text(stage, size)}"
    for parity, name in enumerate(("image", "parity")):
        those = [event for event in taken if event["parity"] == parity]
        if not those:
            stage.add(f"{what}: {name}", met=False, remark=client.trouble[:300])
            return
        prepared, stall, total = (
            figures.median([float(event[key]) for event in those]) or 0.0 for key in ("prepared_s", "stall_ms", "total_s")
        )
        remark = f"copied after {prepared:.2f} s, stall {stall:.1f} ms, {those[-1]['stored_bytes'] / (1 << 20):.0f} MiB stored"
        stage.add(f"{what}: {name}, whole time", mpsd=f"{total:.2f} s", remark=remark)
    right = sum(bool(event["is_right"]) for event in rebuilt)
    seconds = figures.median([float(event["seconds"]) for event in rebuilt]) or 0.0
    stage.add(
        f"{what}: one lost and rebuilt, bit for bit", mpsd=figures.of(right, trials), goal="all", met=right == trials,
        remark=client.trouble[:300] if right < trials else f"{seconds:.2f} s each",
    )  # fmt: skip
