"""The sections about failover, in a small version on the simulator: each runs, and reaches what is not speed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.comparison import failover, processes
from tests.gpu.comparison.sections import SECTIONS
from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR

COMPARE = Path(__file__).with_name("compare")
NAMES = ("failover_count", "failover_fence", "failover_llm")
NEEDED = (SIMULATOR / "lib/libcuda.so.1", CLIENTS / "faulter", FRONT_END)
SECONDS = 200

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.deadline(SECONDS + 20),
    pytest.mark.skipif(not all(map(Path.exists, NEEDED)), reason="the simulator or the clients are not built (make)"),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """compare.json of one run, each disturbance once."""
    directory = tmp_path_factory.mktemp("failover")
    env = dict(os.environ, OUT=str(directory))
    argv = [sys.executable, str(COMPARE), "--dry-run-sim", "--trials", "2", "--only", ",".join(NAMES), "--budget", str(SECONDS)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=SECONDS + 15, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    found: dict[str, Any] = json.loads((directory / "compare.json").read_text())
    return found


def test_every_section_of_failover_runs(result: dict[str, Any]) -> None:
    broken = [row for row in result["rows"] if row["what"] in ("failed", "did not end", "not begun", "not cleared up")]
    assert not broken
    assert {row["section"] for row in result["rows"]} == set(NAMES)


def test_everything_of_failover_but_speed_is_reached(result: dict[str, Any]) -> None:
    missed = [row for row in result["rows"] if row["met"] is False and "first useful" not in row["what"]]
    assert not missed, "\n".join(f"{row['section']}: {row['what']}: {row['mpsd']}, {row['remark']}" for row in missed)


def test_every_way_was_tried(result: dict[str, Any]) -> None:
    tried = {row["what"] for row in result["rows"] if row["section"] == "failover_count"}
    assert all(any(what.startswith(f"{way}: taken over") for what in tried) for way in failover.WAYS)


def test_the_program_of_all_sections_names_those_there_are() -> None:
    named = next(line for line in Path(__file__).with_name("failover").read_text().splitlines() if line.startswith("sections="))
    assert set(named.partition("=")[2].split(",")) == {each.name for each in SECTIONS if each.name.startswith("failover_")}


def test_the_sections_of_failover_leave_nothing(result: dict[str, Any]) -> None:
    place = Path(result["facts"]["place"])
    assert not place.exists()
    assert not processes.started_below(place)
