"""The command: options, then every section under its deadline, then the table."""

import argparse
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from tests.gpu.comparison.sections import SECTIONS, Section
from tests.gpu.comparison.stage import (
    CLIENTS,
    FRONT_END,
    FULL_TRIALS,
    SIMULATOR,
    TORCH_PYTHON,
    VENDOR,
    Options,
    Stage,
    open_stage,
    output_directory,
)
from tests.gpu.comparison.system import SystemFailed
from tests.gpu.comparison.table import Table

BUDGET_SECONDS = 270.0
_LEAST_SECONDS = 3.0  # a section with less than this is not begun


class Overdue(Exception):
    """The section's time is up."""


def main() -> int:
    asked = _arguments()
    options = _options(asked)
    if absent := [str(path) for path in (options.vendor, options.front_end, CLIENTS / "counter") if not path.exists()]:
        print(f"not there: {', '.join(absent)} (tests/gpu/setup builds; --vendor and --front-end name others)", file=sys.stderr)
        return 2
    chosen = [section for section in SECTIONS if not asked.only or section.name in asked.only]
    table = Table(facts=_facts(options))
    end = time.monotonic() + asked.budget
    signal.signal(signal.SIGALRM, _give_up)
    signal.signal(signal.SIGTERM, _stop)
    try:
        with open_stage(options, table) as stage:
            table.facts["place"] = stage.work
            for section in chosen:
                _run(section, stage, min(section.seconds, end - time.monotonic()))
                _save(table)  # it may be killed before it ends
    finally:
        table.facts["took"] = f"{asked.budget - (end - time.monotonic()):.0f} s"
        _save(table)
        print(f"\n{table.text()}", flush=True)  # what was found, if it is stopped half-way
    return 1 if table.missed else 0


def _run(section: Section, stage: Stage, seconds: float) -> None:
    """Run a section. Any failure in it becomes a row, and the next section begins with new daemons."""
    stage.section = section.name
    if seconds < _LEAST_SECONDS:
        stage.add("not begun", remark="no time was left")
        return
    stage.deadline = time.monotonic() + seconds
    before = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds, 2)  # and again: it may fall into a handler that swallows it
    failed = True
    try:
        section.run(stage)
        failed = False
    except Overdue:
        stage.add("did not end", met=False, remark=f"cut off after {seconds:.0f} s")
    except SystemFailed as error:
        stage.add("failed", met=False, remark=str(error))
    except Exception as error:
        traceback.print_exc()
        stage.add("failed", met=False, remark=f"{type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    _clear(stage, failed)
    stage.say(f"took {time.monotonic() - before:.1f} s")


def _clear(stage: Stage, failed: bool) -> None:
    try:
        stage.clear()
        for system in stage.both if failed else ():
            system.kill()
    except SystemFailed as error:  # a process that even SIGKILL does not end
        stage.add("not cleared up", met=False, remark=str(error))


def _give_up(number: int, frame: FrameType | None) -> None:
    raise Overdue


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # by way of everything that clears up


def _arguments() -> argparse.Namespace:
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(prog="compare", description="The vendor's control daemon and mpsd, in one table.")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(names)}")
    parser.add_argument("--trials", type=int, default=FULL_TRIALS, help="20; everything that is repeated scales with it")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS", help="for everything together")
    parser.add_argument("--vendor", type=Path, help=f"the vendor's control program ({VENDOR})")
    parser.add_argument("--front-end", type=Path, default=FRONT_END, help="mpsd's")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment that mpsd is in")
    parser.add_argument("--torch-python", type=Path, help=f"one that has PyTorch ({TORCH_PYTHON})")
    parser.add_argument("--dry-run-sim", action="store_true", help="on the simulator: tries this program, measures nothing")
    asked = parser.parse_args()
    if unknown := set(asked.only or ()) - set(names):
        parser.error(f"no section is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return asked


def _options(asked: argparse.Namespace) -> Options:
    vendor = asked.vendor or (SIMULATOR / "bin/nvidia-cuda-mps-control" if asked.dry_run_sim else VENDOR)
    torch = asked.torch_python or (TORCH_PYTHON if not asked.dry_run_sim else None)
    found = torch.absolute() if torch and torch.exists() else None
    python = asked.python.absolute()  # not resolved: the link is what makes it the environment's
    return Options(vendor.resolve(), asked.front_end.resolve(), python, found, asked.trials, asked.dry_run_sim)


def _facts(options: Options) -> dict[str, object]:
    version = Path("/proc/driver/nvidia/version")
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "machine": "the simulator: figures mean nothing" if options.is_simulated else "GPU",
        "driver": version.read_text().splitlines()[0] if version.exists() else "-",
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "uid": os.geteuid(),
        "vendor's program": options.vendor,
        "trials": options.trials,
    }


def _save(table: Table) -> None:
    table.facts = {name: str(value) for name, value in table.facts.items()}
    target = output_directory()
    if target is not None:
        (target / "compare.json").write_text(table.json())
        (target / "compare.md").write_text(table.markdown())
