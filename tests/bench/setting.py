"""Shared by the benchmarks: their options, the two systems that they measure, and their output.

The systems, and the code that starts and ends them, are those of tests/gpu/comparison. On the simulator, which is the default,
only ratios and growth are meaningful; --gpu measures on the machine's own GPU.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.gpu.comparison.stage import CLIENTS, FRONT_END, SIMULATOR, VENDOR, Options, Stage, open_stage
from tests.gpu.comparison.system import SystemFailed
from tests.gpu.comparison.table import Table

LIMIT_SECONDS = 240.0

Lines = Mapping[str, Sequence[tuple[float, float]]]  # of a plot: by name, (x, y)


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
    if asked.json:
        Path(asked.json).write_text(table.json())
    print()
    print(table.text(), flush=True)
    return status


def parser(name: str, about: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog=f"bench_{name}.py", description=about.partition("\n")[0])
    options.add_argument("--gpu", action="store_true", help="on this machine's GPU rather than on the simulator")
    options.add_argument("--trials", type=int, default=20, help="20; what is repeated scales with it")
    options.add_argument("--json", metavar="FILE", help="everything that was found, raw figures too")
    options.add_argument("--plot", metavar="FILE", help="a picture; needs matplotlib")
    options.add_argument("--vendor", type=Path, help=f"the vendor's control program, with --gpu ({VENDOR})")
    options.add_argument("--front-end", type=Path, default=FRONT_END, help="mpsd's")
    options.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment that mpsd is in")
    return options


def plot(file: str | None, title: str, x: str, y: str, lines: Lines) -> None:
    """Draw lines, if a picture was requested and matplotlib is installed; the table has the same figures in any case."""
    if not file:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no plot in {file}: matplotlib is not installed", file=sys.stderr)
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    print(f"plotted in {file}")


def _options(asked: argparse.Namespace) -> Options:
    vendor = (asked.vendor or VENDOR) if asked.gpu else SIMULATOR / "bin/nvidia-cuda-mps-control"
    return Options(vendor.resolve(), asked.front_end.resolve(), asked.python.absolute(), None, asked.trials, not asked.gpu)
