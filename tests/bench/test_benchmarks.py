"""Each benchmark, in a tiny version on the simulator: it runs, prints its table last, and writes what it found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import programs  # noqa: F401

HERE = Path(__file__).parent
FEWER = {"growth": ["--clients", "0,50"], "storms": ["--waiting", "50", "--arrivals", "10", "--users", "5"]}
FEWER["health"] = ["--busy", "2", "--seconds", "0.5"]
ROWS = {
    "api": "100 subscribers: events per second",
    "leases": "10000 leases: a client is let in, with a lease",
    "parity": "P of 3 members",
    "relay": "64 connections: messages per second",
    "restoring": "0.5 s of loading",
    "start": "importing the daemon: processor time",
    "state": "65536 bytes, 64 changed: publish, median / p99",
    "health": "nice 0: median, 99 %, longest; waited",
    "growth": "50 idle clients: resident, processor",
    "storms": "50 waiting clients of 5 users: killed at once, all gone after",
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("programs")]


def test_every_benchmark_is_tried_here() -> None:
    assert sorted(ROWS) == sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.deadline(120)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(HERE / f"bench_{name}.py"), "--trials", "1", "--json", str(tmp_path / "found.json")]
    argv += FEWER.get(name, [])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    [row] = [row for row in found["rows"] if row["what"] == ROWS[name]]
    assert row["mpsd"] not in ("-", "no result")
    assert ROWS[name] in done.stdout.partition("== ")[2]
