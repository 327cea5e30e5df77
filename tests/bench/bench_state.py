"""The forward state: what a publish costs its writer, and a read its reader, in C and from Python.

    .venv/bin/python tests/bench/bench_state.py [--trials 20] [--json FILE]

Needs neither a GPU nor a daemon; its figures are absolute, of this machine's processor.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd_client import State, StateReader

from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table

ROOT = Path(__file__).resolve().parents[2]
SIZES = (64, 1024, 4096, 16384, 65536)  # bytes of a record
PARTS = (64, 1024, 4096)  # bytes that are changed of the largest one
TIMES = 20_000
COLD_TIMES = 400  # each writes 8 MiB in between
FIELDS = {"step": "uint64", "token": "int64", "rng": "uint64[4]", "request": "text[16]"}  # 64 bytes


def main() -> int:
    asked = setting.parser("state", __doc__).parse_args()
    table = Table(facts={"clock": "ticks of the processor, less what the clock itself costs; steps of up to 10 ns"})
    times = max(200, TIMES * asked.trials // 20)
    with tempfile.TemporaryDirectory() as place:
        program = _built(Path(place, "cost"))
        for size in SIZES:
            for changed in sorted({size, 64}):
                found = {how: _cost(program, size, changed, times, how) for how in ("still", "followed", "cold")}
                _rows(table, f"{size} bytes, {'all' if changed == size else changed} changed", found)
        for changed in PARTS[1:]:
            found = {how: _cost(program, SIZES[-1], changed, times, how) for how in ("still", "followed", "cold")}
            _rows(table, f"{SIZES[-1]} bytes, {changed} changed", found)
    _python(table, times)
    return setting.finish(table, asked)


def _built(program: Path) -> Path:
    source = ROOT / "tests/native/state/cost.c"
    command = ["gcc", "-std=c11", "-O2", f"-I{ROOT / 'clients/c/include'}", "-DMPSD_NO_CUDA_H", str(source), "-o", str(program)]
    subprocess.run([*command, "-pthread", "-ldl"], check=True)
    return program


def _cost(program: Path, size: int, changed: int, times: int, how: str) -> dict[str, Any]:
    count = min(times, COLD_TIMES) if how == "cold" else times
    done = subprocess.run([str(program), str(size), str(changed), str(count), how], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _rows(table: Table, what: str, found: dict[str, dict[str, Any]]) -> None:
    still, followed, cold = found["still"], found["followed"], found["cold"]
    table.keep("state", what, found)
    table.add(
        "state",
        f"{what}: publish, median / p99",
        mpsd=_ns(still["median"], still["p99"]),
        remark=f"read meanwhile {_ns(followed['median'], followed['p99'])}, cold {_ns(cold['median'], cold['p99'])}",
    )
    table.add(
        "state",
        f"{what}: read, median / p99",
        mpsd=_ns(still["reads_median"], still["reads_p99"]),
        remark=f"written meanwhile {_ns(followed['reads_median'], followed['reads_p99'])}, "
        f"{followed['overtaken']} of {followed['reads'] + followed['overtaken']} overtaken at every try",
    )


def _ns(*values: float) -> str:
    return " / ".join(f"{value:.0f}" for value in values) + " ns"


def _python(table: Table, times: int) -> None:
    from mpsd_client._native import lib

    with State.create(FIELDS, generation=1) as state, StateReader.open(state.fd) as reader:
        handle, step = state._handle, state.publisher("step", "token")
        state.publish(request="a")
        rows: dict[str, Callable[[], object]] = {
            "the C call alone": lambda: lib.mpsd_state_update(handle, 0, 16),
            "state.publisher(...)(7, 42)": lambda: step(7, 42),
            "state.publish(step=7)": lambda: state.publish(step=7),
            "state.publish(step=7, token=42)": lambda: state.publish(step=7, token=42),
            "reader.read()": reader.read,
        }
        for what, work in rows.items():
            seconds = [_seconds(work) for _ in range(times)]
            table.keep("state", what, seconds)
            table.add("state", f"Python, 64 bytes: {what}", mpsd=_ns((figures.median(seconds) or 0) * 1e9))


def _seconds(work: Callable[[], object]) -> float:
    """Of one, of ten in a row; what calling it costs is in it."""
    begun = time.perf_counter()
    for _ in range(10):
        work()
    return (time.perf_counter() - begun) / 10


if __name__ == "__main__":
    sys.exit(main())
