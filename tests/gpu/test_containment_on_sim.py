"""tests/gpu/containment in a small version on the simulator: it runs, and its table says what the simulator promises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR

PROGRAM = Path(__file__).with_name("containment")
SECTIONS = {"contained", "contained_shares", "sentinel_cost", "sentinel_services"}
NEEDED = (SIMULATOR / "lib/libcuda.so.1", CLIENTS / "counter", FRONT_END)
SECONDS = 200

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.deadline(SECONDS + 40),
    pytest.mark.skipif(not all(map(Path.exists, NEEDED)), reason="the simulator or the clients are not built (make)"),
]


def test_sm_exceptions_are_contained_and_memory_faults_are_not(tmp_path: Path) -> None:
    variables = {"OUT": str(tmp_path), "BUDGET": str(SECONDS), "MPSD_PYTHON": sys.executable}
    variables["CONTAINMENT_CLASSES"] = "misaligned,graph,cluster,killed"
    argv = [str(PROGRAM), "--dry-run-sim", "--trials", "1"]
    done = subprocess.run(
        argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS + 30, check=False
    )
    found: dict[str, Any] = json.loads((tmp_path / "compare.json").read_text())
    assert {row["section"] for row in found["rows"]} == SECTIONS
    assert not [row for row in found["rows"] if row["what"] in ("failed", "did not end", "not begun")], done.stdout
    trials = {(each["mode"], each["system"]): each for each in found["raw"]["contained"]["trials"]}
    for mode in ("misaligned", "graph_trap", "cluster_shared", "killed"):
        assert set(trials[mode, "guarded"]["ends"].values()) == {"exact"}, mode
        assert "exact" not in trials[mode, "vendor"]["ends"].values(), mode
    assert "exact" not in trials["graph_oob_write", "guarded"]["ends"].values()
    assert trials["misaligned", "guarded"]["is_right"]
