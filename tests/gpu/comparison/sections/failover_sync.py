"""The writer's cost of publishing a forward state on this machine, by the size of the record and of the change."""

import json
import subprocess
from typing import Any

from tests.gpu.comparison import figures
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import SystemFailed

BENCH = ROOT / "tests/bench/bench_state.py"
MOST_NS = 1000.0
SECONDS = 90.0


def run(stage: Stage) -> None:
    out = stage.work / "state.json"
    argv = [str(stage.options.python), str(BENCH), "--trials", str(stage.options.trials), "--json", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise SystemFailed(f"bench_state: {done.stderr[-200:]}")
    found: dict[str, Any] = json.loads(out.read_text())["raw"]["state"]
    for what, costs in found.items():
        if isinstance(costs, dict):
            _add(stage, what, costs)
        elif "publish" in what:
            stage.add(f"from Python, 64 bytes: {what}", mpsd=f"{1e9 * (figures.median(costs) or 0):.0f} ns")
    stage.keep("state", found)


def _add(stage: Stage, what: str, costs: dict[str, dict[str, float]]) -> None:
    still, followed = costs["still"], costs["followed"]
    stage.add(
        f"a record of {what}: publish",
        mpsd=f"{still['median']:.0f} ns",
        goal=f"<= {MOST_NS:.0f} ns",
        met=still["median"] <= MOST_NS,
        remark=f"99 %: {still['p99']:.0f} ns; while it is read: {followed['median']:.0f} ns",
    )
