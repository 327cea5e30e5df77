"""The comparison itself, in a tiny version on the simulator: every section runs and gives the expected rows.

The sections of the vault and of the shim are in test_vault_on_sim.py, those of failover in test_failover_on_sim.py, those of
sentinels in test_containment_on_sim.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.comparison import processes
from tests.gpu.comparison.sections import SECTIONS
from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR

BUDGET_SECONDS = 450.0  # they take 150 on two busy cores
COMPARE = Path(__file__).with_name("compare")
NEEDED = (SIMULATOR / "bin/nvidia-cuda-mps-control", SIMULATOR / "lib/libcuda.so.1", CLIENTS / "counter", FRONT_END)
ELSEWHERE = ("contract", "vault_", "shim_", "failover_", "contained", "sentinel_")
OTHERS = tuple(section.name for section in SECTIONS if not section.name.startswith(ELSEWHERE))
# Sections whose goals are speeds, which a simulated GPU does not have.
SPEED = ("startup", "throughput", "memory_faults", "other_faults")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(not all(map(Path.exists, NEEDED)), reason="the simulator or the clients are not built (make)"),
]

@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return compare.json of one run of all sections that no other file tests."""
    directory = tmp_path_factory.mktemp("compare")
    argv = [sys.executable, str(COMPARE), "--dry-run-sim", "--trials", "1", "--only", ",".join(OTHERS)]
    argv += ["--budget", str(BUDGET_SECONDS)]
    env = dict(os.environ, OUT=str(directory))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=BUDGET_SECONDS + 50, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    found: dict[str, Any] = json.loads((directory / "compare.json").read_text())
    found["printed"] = done.stdout
    found["files"] = sorted(path.name for path in directory.iterdir())
    return found


@pytest.mark.deadline(520)
def test_every_section_runs(result: dict[str, Any]) -> None:
    """A row called "failed" or "did not end" is a section that broke."""
    broken = [row for row in result["rows"] if row["what"] in ("failed", "did not end", "not begun")]
    assert not broken
    assert {row["section"] for row in result["rows"]} == set(OTHERS)


@pytest.mark.deadline(520)
def test_mpsd_reaches_what_is_not_speed(result: dict[str, Any]) -> None:
    assert not [row for row in result["rows"] if row["met"] is False and row["section"] not in SPEED]


@pytest.mark.deadline(520)
def test_the_vendor_fails_where_it_is_known_to(result: dict[str, Any]) -> None:
    """Were it not so, the comparison would look at the wrong thing."""
    cells = {row["what"]: row["vendor"] for row in result["rows"]}
    assert cells["64 clients at once: running and counting"] == "48 of 64"
    assert cells["kill -9: running clients that go on"] == "0 of 8"
    assert cells["trap"].startswith("0 of 3 went on")
    assert cells["client of another user beside a running one of root: first kernel"].startswith("waits")


@pytest.mark.deadline(520)
def test_the_table_comes_last_and_the_files_are_few(result: dict[str, Any]) -> None:
    assert result["printed"].rstrip().splitlines()[-1].split(" of ")[0].isdigit()
    assert {"compare.json", "compare.md"} <= set(result["files"])
    assert len(result["files"]) <= 8


@pytest.mark.deadline(520)
def test_nothing_is_left(result: dict[str, Any]) -> None:
    place = Path(result["facts"]["place"])
    assert not place.exists()
    assert not processes.started_below(place)
