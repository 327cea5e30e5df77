"""Commands per second: mpsd's front end compared with the vendor's program, one process a command, from 1 to 64 pollers at
once.

.venv/bin/python tests/bench/bench_commands.py [--gpu] [--trials 20] [--json FILE] [--plot FILE]
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import setting
from tests.gpu.comparison.sections import pollers
from tests.gpu.comparison.stage import Stage

ROUNDS = {1: (300, 300), 4: (100, 100), 16: (50, 50), 64: (25, 50)}  # pollers: commands each, of the vendor's and of mpsd


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    rates = pollers.run(stage, ROUNDS)
    setting.plot(asked.plot, "Commands of concurrent pollers", "pollers", "answered per second", rates)


if __name__ == "__main__":
    sys.exit(setting.run("commands", setting.parser("commands", __doc__).parse_args(), measure))
