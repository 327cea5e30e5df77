"""How long `health` takes on a machine whose processors other processes want, with mpsd's own priority and without.

    .venv/bin/python tests/bench/bench_health.py [--busy 12] [--seconds 20] [--json FILE]

`busy` processes compute without a pause, at the default nice value. The caller of `health` has that value too, or, in the rows
"urgent caller", -20: what remains then is mpsd's. "waited" is the longest time in which mpsd was ready and had no processor, in
one answer. As root.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd_client import calls

from tests.bench import setting
from tests.gpu.comparison.stage import Stage
from tests.integration.machine import Machine, open_machine

PAUSE_SECONDS = 0.02
COMPUTE = "while True: pass"
SETTINGS = {"nice -10, the default": "", "nice 0": "nice = 0\n"}


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    for name, config in SETTINGS.items():
        with open_machine() as machine:
            machine.configure(config)
            machine.start()
            machine.counter(uid=1000).ready(60.0)
            for caller, nice in (("", 0), (", urgent caller", -20)):
                with busy(asked.busy):
                    took, waited = ask(machine, asked.seconds, nice)
                middle, high, longest = took[len(took) // 2], took[len(took) * 99 // 100], took[-1]
                figures = f"{middle:.1f}, {high:.1f}, {longest:.1f} ms; {waited:.1f} ms; n {len(took)}"
                stage.add(f"{name}{caller}: median, 99 %, longest; waited", mpsd=figures)


@contextmanager
def busy(count: int) -> Iterator[None]:
    crowd = [subprocess.Popen([sys.executable, "-S", "-c", COMPUTE]) for _ in range(count)]
    try:
        time.sleep(1.0)
        yield
    finally:
        for each in crowd:
            each.kill()
            each.wait()


def ask(machine: Machine, seconds: float, nice: int) -> tuple[list[float], float]:
    """Ask for some time; return how long the answers took, sorted, and mpsd's longest wait for a processor, all in ms."""
    delay = Path(f"/proc/{machine.daemon_pid()}/schedstat")
    took, waited = [], []
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    try:
        with machine.mpsd() as mpsd:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                before, began = int(delay.read_text().split()[1]), time.monotonic()
                mpsd.ask(calls.health())
                took.append(1e3 * (time.monotonic() - began))
                waited.append((int(delay.read_text().split()[1]) - before) / 1e6)
                time.sleep(PAUSE_SECONDS)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    return sorted(took), max(waited)


if __name__ == "__main__":
    options = setting.parser("health", __doc__)
    options.add_argument("--busy", type=int, default=12, help="12; processes that compute")
    options.add_argument("--seconds", type=float, default=20.0, help="20; for each row")
    sys.exit(setting.run("health", options.parse_args(), measure))
