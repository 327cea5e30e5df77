"""Shared by the benchmarks: their options, the two systems that they measure, and their output.

The systems, and the code that starts and ends them, are those of tests/gpu/comparison. On the simulator, which is the default,
only ratios and growth are meaningful; --gpu measures on the machine's own GPU.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR, VENDOR, Options, Stage, open_stage
from tests.gpu.comparison.system import SystemFailed
from tests.gpu.comparison.table import Table

LIMIT_SECONDS = 240.0


def run(name: str, asked: argparse.Namespace, measure: Callable[[Stage, argparse.Namespace], None]) -> int:
    """Measure, then print the table; the exit status, 0 unless something could not be measured."""
    options = _options(asked)
    if absent := [str(path) for path in (options.vendor, options.front_end, CLIENTS / "counter") if not path.exists()]:
        print(f"not there: {', '.join(absent)}; `make` builds, and `make -C tests/clients`", file=sys.stderr)
        return 2
    table = Table(facts={"machine": "GPU" if asked.gpu else "the simulator: only ratios and growth mean something"})
    status = 0
    with open_stage(options, table) as stage:
        stage.section, stage.deadline = name, time.monotonic() + LIMIT_SECONDS
        try:
            measure(stage, asked)
        except SystemFailed as error:
            stage.add("failed", met=False, remark=str(error))
            status = 1
    table.facts = {fact: str(value) for fact, value in table.facts.items()}
    print()
    return finish(table, asked) or status


def finish(table: Table, asked: argparse.Namespace) -> int:
    """Print the table, and write it with the raw figures where --json says; 0."""
    if asked.json:
        Path(asked.json).write_text(table.json())
    print(table.text(), flush=True)
    return 0


def parser(name: str, about: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog=f"bench_{name}.py", description=about.partition("\n")[0])
    options.add_argument("--gpu", action="store_true", help="on this machine's GPU rather than on the simulator")
    options.add_argument("--trials", type=int, default=20, help="20; what is repeated scales with it")
    options.add_argument("--json", metavar="FILE", help="everything that was found, raw figures too")
    options.add_argument("--vendor", type=Path, help=f"the vendor's control program, with --gpu ({VENDOR})")
    options.add_argument("--front-end", type=Path, default=FRONT_END, help="mpsd's")
    options.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment that mpsd is in")
    return options


def _options(asked: argparse.Namespace) -> Options:
    vendor = (asked.vendor or VENDOR) if asked.gpu else SIMULATOR / "bin/nvidia-cuda-mps-control"
    return Options(vendor.resolve(), asked.front_end.resolve(), asked.python.absolute(), None, asked.trials, not asked.gpu)
