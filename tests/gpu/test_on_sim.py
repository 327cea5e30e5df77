"""The sections of tests/gpu/compare in a tiny version on the simulator: each runs, and reaches all that is not speed.

The contract suite has separate tests.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gpu.comparison import failover, processes
from tests.gpu.comparison.sections import SECTIONS
from tests.gpu.comparison.sections.shim_shield import SHIM
from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR

HERE = Path(__file__).parent
MOST_SECONDS = 450
NEEDED = (
    SIMULATOR / "bin/nvidia-cuda-mps-control",
    SIMULATOR / "lib/libcuda.so.1",
    *(CLIENTS / name for name in ("counter", "faulter", "arena_client", "wild")),
    FRONT_END,
    SHIM,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.deadline(MOST_SECONDS + 70),
    pytest.mark.skipif(not all(map(Path.exists, NEEDED)), reason="the simulator, the shim or the clients are not built (make)"),
]

Row = dict[str, Any]
Result = dict[str, Any]


def names(*prefixes: str) -> set[str]:
    return {section.name for section in SECTIONS if section.name.startswith(prefixes)}


def check_that_the_vendor_fails(found: Result) -> None:
    """Were it not so, the comparison would look at the wrong thing."""
    cells = {row["what"]: row["vendor"] for row in found["rows"]}
    assert cells["64 clients at once: running and counting"] == "48 of 64"
    assert cells["kill -9: running clients that go on"] == "0 of 8"
    assert cells["trap"].startswith("0 of 3 went on")
    assert cells["client of another user beside a running one of root: first kernel"].startswith("waits")


def check_that_what_is_not_absorbed_kills(found: Result) -> None:
    """Were it not so, the sections would look at the wrong thing."""
    rows = {row["what"]: row for row in found["rows"]}
    for mode in ("overrun", "underrun", "use_after_free", "near_null"):
        [row] = [row for what, row in rows.items() if what.startswith(f"{mode}: absorbed")]
        died, _, total = row["vendor"].rpartition("died in ")[2].split()
        assert died == total
    assert not rows["with a co-runner, let go at once: kills that hurt a co-runner"]["mpsd"].startswith("0 ")


def check_that_every_way_was_tried(found: Result) -> None:
    tried = {row["what"] for row in found["rows"] if row["section"] == "failover_count"}
    assert all(any(what.startswith(f"{way}: taken over") for what in tried) for way in failover.WAYS)


def check_that_sm_exceptions_are_contained_and_memory_faults_are_not(found: Result) -> None:
    trials = {(each["mode"], each["system"]): each for each in found["raw"]["contained"]["trials"]}
    for mode in ("misaligned", "graph_trap", "cluster_shared", "killed"):
        assert set(trials[mode, "guarded"]["ends"].values()) == {"exact"}, mode
        assert "exact" not in trials[mode, "vendor"]["ends"].values(), mode
    assert "exact" not in trials["graph_oob_write", "guarded"]["ends"].values()
    assert trials["misaligned", "guarded"]["is_right"]


def check_that_the_service_went_there_and_back(found: Result) -> None:
    assert len(found["raw"]["move"]["move"]["pauses_ms"]) == 2
    for steps in found["raw"]["move"]["move"]["steps_ms"]:
        assert list(steps) == ["barrier", "written", "given", "ordered", "begun", "first"]
        assert min(steps.values()) > -1.0, "the image has its times of another clock"


class Part(NamedTuple):
    """Sections that run together.  is_speed: whether the goal of a row is a speed, which a simulated GPU does not have."""

    sections: set[str]
    seconds: int
    trials: int
    is_speed: Callable[[Row], bool]
    check: Callable[[Result], None]
    classes: str = ""  # CONTAINMENT_CLASSES
    gpus: int = 1


ELSEWHERE = names("contract", "vault_", "shim_", "failover_", "contained", "sentinel_", "move", "replica", "ranks")
SPEED = ("startup", "throughput", "memory_faults", "other_faults")
PARTS = {
    "compare": Part(
        names("") - ELSEWHERE, MOST_SECONDS, 1, lambda row: row["section"] in SPEED, check_that_the_vendor_fails
    ),
    # 6 trials, a third of which are of the C program: mpsd is killed in one of them
    "vault": Part(names("vault_", "shim_"), 300, 6, lambda row: False, check_that_what_is_not_absorbed_kills),
    "failover": Part(
        {"failover_count", "failover_fence", "failover_llm"}, 200, 2,
        lambda row: "first useful" in row["what"], check_that_every_way_was_tried,
    ),
    "two": Part(
        names("move", "replica", "ranks"), 200, 2, lambda row: False, check_that_the_service_went_there_and_back, gpus=2
    ),
    "containment": Part(
        names("contained", "sentinel_"), 200, 1,
        lambda row: True, check_that_sm_exceptions_are_contained_and_memory_faults_are_not,
        "misaligned,graph,cluster,killed",
    ),
}  # fmt: skip


@pytest.fixture(name="result", scope="module", params=PARTS)
def result_of_a_part(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return compare.json of one run, with what it printed and the names of its files."""
    part, directory = PARTS[request.param], tmp_path_factory.mktemp(request.param)
    argv = [sys.executable, str(HERE / "compare"), "--dry-run-sim", "--trials", str(part.trials)]
    argv += ["--only", ",".join(part.sections), "--budget", str(part.seconds)]
    env = {**os.environ, "OUT": str(directory), "CONTAINMENT_CLASSES": part.classes, "MPSD_SIM_GPUS": str(part.gpus)}
    env["LATE_FIRST"] = "17"  # of the 21 calls of a client; each takes 9 s, and these show both of what it waits for
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=part.seconds + 50, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    found: Result = json.loads((directory / "compare.json").read_text())
    return found | {"part": part, "printed": done.stdout, "files": {path.name for path in directory.iterdir()}}


def test_every_section_runs(result: Result) -> None:
    """A row called "failed" or "did not end" is a section that broke."""
    broken = [row for row in result["rows"] if row["what"] in ("failed", "did not end", "not begun", "not cleared up")]
    assert not broken
    assert {row["section"] for row in result["rows"]} == result["part"].sections


def test_what_is_not_speed_is_reached(result: Result) -> None:
    missed = [row for row in result["rows"] if row["met"] is False and not result["part"].is_speed(row)]
    assert not missed, "\n".join(f"{row['section']}: {row['what']}: {row['mpsd']}, {row['remark']}" for row in missed)


def test_the_sections_look_at_the_right_thing(result: Result) -> None:
    result["part"].check(result)


def test_the_table_comes_last_and_the_files_are_few(result: Result) -> None:
    assert result["printed"].rstrip().splitlines()[-1].split(" of ")[0].isdigit()
    assert result["files"] >= {"compare.json", "compare.md"}
    assert len(result["files"]) <= 8


def test_nothing_is_left(result: Result) -> None:
    place = Path(result["facts"]["place"])
    assert not place.exists()
    assert not processes.started_below(place)


@pytest.mark.parametrize(
    ("program", "sections"),
    [
        ("vault", names("vault_", "shim_")),
        ("failover", names("failover_")),
        ("containment", names("contained", "sentinel_")),
        ("faults", {"memory_faults", "other_faults", "stopping"}),
    ],
)
def test_each_program_names_the_sections_there_are(program: str, sections: set[str]) -> None:
    [named] = re.findall(r"(?:^sections=|/compare\" --only )([a-z_,]+)", (HERE / program).read_text(), re.MULTILINE)
    assert set(named.split(",")) == sections <= names("")
