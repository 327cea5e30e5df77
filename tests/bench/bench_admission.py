"""A client's way in: start to first kernel through mpsd's relay, and straight to a vendor daemon; alone and many at once.

.venv/bin/python tests/bench/bench_admission.py [--gpu] [--trials 20] [--json FILE] [--plot FILE]
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

AT_ONCE = {1: 20, 4: 8, 16: 4, 40: 2}  # clients: how often
SECONDS = 60.0
PARTS = {"first_kernel_ms": "first kernel", "init_ms": "of that, cuInit", "context_ms": "of that, the context"}


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    lines: dict[str, list[tuple[float, float]]] = {"vendor": [], "mpsd": []}
    for system in stage.both:
        system.warm(SECONDS)
    for count, full in AT_ONCE.items():
        found: dict[str, list[dict[str, float]]] = {"vendor": [], "mpsd": []}
        for _ in range(stage.trials(full)):
            for system in stage.both:
                found[system.name].append(_crowd(system, count))
        for part in (*PARTS, "last_ms") if count > 1 else PARTS:
            _row(stage, count, part, *([each[part] for each in found[name]] for name in ("vendor", "mpsd")))
        for name, each in found.items():
            lines[name].append((count, sum(one["first_kernel_ms"] for one in each) / len(each)))
        stage.keep(f"{count} at once", found)
    setting.plot(asked.plot, "Start to first kernel", "clients started at once", "median, ms", lines)


def _crowd(system: System, count: int) -> dict[str, float]:
    """Medians over clients that start together, and when the last of them had run a kernel."""
    began_ns = time.monotonic_ns()
    clients = [system.client("counter", "--seconds", "0") for _ in range(count)]
    ready = [client.wait_for("ready", SECONDS) for client in clients]
    end_all(clients)
    system.clients.clear()
    if not all(ready):
        raise SystemFailed(f"{system.name}: {[client.fate for client in clients]}")
    medians = {part: figures.median([event[part] for event in ready if event]) or 0.0 for part in PARTS}
    return medians | {"last_ms": max(event["monotonic_ns"] - began_ns for event in ready if event) / 1e6}


def _row(stage: Stage, count: int, part: str, theirs: list[float], ours: list[float]) -> None:
    stage.add(
        f"{count} at once: {PARTS.get(part, 'until the last one ran')}",
        vendor=figures.ms(figures.median(theirs)),
        mpsd=figures.ms(figures.median(ours)),
        ratio=figures.times(figures.ratio(ours, theirs)),
        remark=figures.pair_range(ours, theirs),
    )


if __name__ == "__main__":
    sys.exit(setting.run("admission", setting.parser("admission", __doc__).parse_args(), measure))
