"""The report as a person runs it."""

import subprocess
import sys

from tests.contract.programs import ROOT, Program


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.contract.report", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_report_compares_with_the_record(program: Program) -> None:
    done = report("--control", str(program.control), "--scene", "default percentage", "--all")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [[cell.strip() for cell in row.split(" | ")] for row in done.stdout.splitlines()]
    assert rows[0] == ["command", "driver 580, recorded", program.name, "same?"]
    assert ["set_default_active_thread_percentage 50x", r"50.0\n", r"50.0\n", "yes"] in rows
    assert rows[-1] == ["0 unexpected answers"]


def test_the_report_compares_two_programs(program: Program) -> None:
    control = str(program.control)
    done = report("--control", control, "--control", control, "--scene", "no daemon")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("0 unexpected answers\n")


def test_the_report_says_what_is_missing() -> None:
    done = report("--control", "/nowhere/nvidia-cuda-mps-control")
    assert (done.returncode, done.stderr) == (2, "vendor: not there: /nowhere/nvidia-cuda-mps-control\n")
