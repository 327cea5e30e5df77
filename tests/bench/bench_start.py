"""The start of mpsd: how long `-d` takes, the processor time of the imports, and the memory of a daemon without clients.

    .venv/bin/python tests/bench/bench_start.py [--gpu] [--trials 20] [--json FILE]

Processor time hardly depends on what else the machine does; the time of `-d` does.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import setting
from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.stage import Stage

NOTHING = "pass"
IMPORT = "import gc; gc.disable(); import mpsd.__main__, mpsd.app.start"  # as `serve` does


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    started: dict[str, list[float]] = {"vendor": [], "mpsd": []}
    resident: dict[str, list[float]] = {"vendor": [], "mpsd": []}
    spent: dict[str, list[float]] = {NOTHING: [], IMPORT: []}
    for _ in range(asked.trials):
        for system in stage.both:
            started[system.name].append(system.renew())
            resident[system.name].append(processes.memory_mib(system.pid())[0])
        for code, found in spent.items():
            found.append(_processor_ms(stage.options.python, code))
    stage.add(
        f"-d, until it takes clients (median of {asked.trials})",
        vendor=figures.ms(figures.median(started["vendor"])),
        mpsd=figures.ms(figures.median(started["mpsd"])),
        ratio=figures.times(figures.ratio(started["mpsd"], started["vendor"])),
    )
    stage.add(
        "importing the daemon: processor time",
        mpsd=figures.ms(figures.median(spent[IMPORT])),
        remark=f"of which an empty Python {figures.ms(figures.median(spent[NOTHING]))}",
    )
    stage.add(
        "no clients: resident",
        vendor=figures.number(figures.median(resident["vendor"]), "MiB"),
        mpsd=figures.number(figures.median(resident["mpsd"]), "MiB"),
    )
    stage.keep("start", {"-d, ms": started, "resident, MiB": resident, "processor, ms": spent})


def _processor_ms(python: Path, code: str) -> float:
    """Run Python code in a process; return its processor time."""
    process = subprocess.Popen([python, "-c", code], cwd=Path(__file__).parents[2])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return (usage.ru_utime + usage.ru_stime) * 1e3


if __name__ == "__main__":
    sys.exit(setting.run("start", setting.parser("start", __doc__).parse_args(), measure))
