"""tests/gpu/sentinel in a small version on the simulator: it runs, and its table says what the simulator promises."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.sentinel_trials import CLIENTS, CO_RUNNERS, SIMULATOR

PROGRAM = Path(__file__).with_name("sentinel")
SECONDS = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.deadline(SECONDS + 60),
    pytest.mark.skipif(
        not ((SIMULATOR / "lib/libcuda.so.1").exists() and (CLIENTS / "counter").exists()), reason="not built (make)"
    ),
]


def test_a_round_contains_sm_exceptions_and_no_memory_fault(tmp_path: Path) -> None:
    env = dict(os.environ, OUT=str(tmp_path), BUDGET=str(SECONDS))
    argv = [sys.executable, str(PROGRAM), "--dry-run-sim", "--only", "misaligned,stack_overflow,oob_write"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=SECONDS + 40, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads((tmp_path / "sentinel.json").read_text())
    with_one = {
        mode: [each for each in trials if each["mode"] == mode and each["has_sentinel"]] for mode in ("misaligned", "oob_write")
    }
    assert [each["exact"] for each in trials if not each["has_sentinel"]] == [0, 0, 0]
    assert {each["exact"] for each in with_one["misaligned"]} == {CO_RUNNERS}
    assert all(each["named_ms"] is not None and each["wrongly"] == 0 for each in with_one["misaligned"])
    assert [each["exact"] for each in with_one["oob_write"]] == [0]
    assert "misaligned | 0/3 | " in done.stdout
