"""The sections of the vault and of the shim, in a small version on the simulator: each runs, and reaches what is not speed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.comparison import processes
from tests.gpu.comparison.sections import SECTIONS
from tests.gpu.comparison.sections.shim_shield import SHIM
from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR

COMPARE = Path(__file__).with_name("vault")
NAMES = {section.name for section in SECTIONS if section.name.startswith(("vault_", "shim_"))}
NEEDED = (SIMULATOR / "lib/libcuda.so.1", CLIENTS / "arena_client", CLIENTS / "wild", FRONT_END, SHIM)
SECONDS = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.deadline(SECONDS + 20),
    pytest.mark.skipif(not all(map(Path.exists, NEEDED)), reason="the simulator, the shim or the clients are not built (make)"),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return compare.json of one run; two trials instead of five, so that mpsd is killed in one of them."""
    directory = tmp_path_factory.mktemp("vault")
    env = dict(os.environ, OUT=str(directory), MPSD_PYTHON=sys.executable, BUDGET=str(SECONDS))
    argv = [str(COMPARE), "--dry-run-sim", "--trials", "6"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    found: dict[str, Any] = json.loads((directory / "compare.json").read_text())
    return found


def test_every_section_of_the_vault_runs(result: dict[str, Any]) -> None:
    broken = [row for row in result["rows"] if row["what"] in ("failed", "did not end", "not begun", "not cleared up")]
    assert not broken
    assert {row["section"] for row in result["rows"]} == NAMES


def test_everything_but_speed_is_reached(result: dict[str, Any]) -> None:
    assert not [row for row in result["rows"] if row["met"] is False]


def test_what_is_not_absorbed_kills_and_what_is_let_go_hurts(result: dict[str, Any]) -> None:
    """Were it not so, the sections would look at the wrong thing."""
    rows = {row["what"]: row for row in result["rows"]}
    for mode in ("overrun", "underrun", "use_after_free", "near_null"):
        [row] = [row for what, row in rows.items() if what.startswith(f"{mode}: absorbed")]
        died, _, total = row["vendor"].rpartition("died in ")[2].split()
        assert died == total
    assert not rows["with a co-runner, let go at once: kills that hurt a co-runner"]["mpsd"].startswith("0 ")


def test_the_sections_of_the_vault_leave_nothing(result: dict[str, Any]) -> None:
    place = Path(result["facts"]["place"])
    assert not place.exists()
    assert not processes.started_below(place)
