"""mpsctl env: what it prints is what a shell takes, and what mpsd reads."""

import json
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from mpsctl.commands.environment import CORES, variables
from mpsctl.program import main

from mpsd.faults.sources.core_dumps import environment
from tests.unit.ctl.console import surroundings


@pytest.mark.parametrize(
    ("words", "environ", "directory"),
    [
        ("env", {}, "/tmp/nvidia-mps"),
        ("env", {"CUDA_MPS_PIPE_DIRECTORY": "/run/a b"}, "/run/a b"),
        ("env --socket /x/mpsd.sock", {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, "/x"),
    ],
)
def test_the_environment_of_a_program_is_for_a_shell(
    words: str, environ: dict[str, str], directory: str
) -> None:
    """The command does not connect: no mpsd runs here."""
    assert run_shell(run_alone(f"{words}", environ)) == {"CUDA_MPS_PIPE_DIRECTORY": directory}
    with_dumps = run_shell(run_alone(f"{words} --core-dumps", environ))
    assert with_dumps["CUDA_COREDUMP_FILE"] == f"{directory}/cores/core.%h.%p"
    assert with_dumps["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
    assert "skip_abort" in with_dumps["CUDA_COREDUMP_GENERATION_FLAGS"].split(",")
    assert json.loads(run_alone(f"{words} --core-dumps --json", environ)) == with_dumps


def test_core_dumps_are_written_to_where_mpsd_reads_them() -> None:
    ours = dict(variables("/run/mps", core_dumps=True))
    assert ours.pop("CUDA_MPS_PIPE_DIRECTORY") == "/run/mps"
    assert ours == environment(Path("/run/mps") / CORES)


@pytest.mark.parametrize(("words", "is_told"), [("env --core-dumps", True), ("env --core-dumps --json", True), ("env", False)])
def test_who_asks_for_core_dumps_is_told_what_they_cost(words: str, is_told: bool) -> None:
    """A warning apart from the shell's output: a program that sees success after a failed kernel is worse than a dead one."""
    around = surroundings(StringIO())
    assert main(words.split(), around) == 0
    said = around.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("can return success after a failed kernel (18 of 28 faults measured)" in said) == is_told
    assert "success" not in around.stdout.getvalue()  # type: ignore[attr-defined]


def run_alone(words: str, environ: dict[str, str]) -> str:
    around = surroundings(StringIO(), **environ)
    assert main(words.split(), around) == 0
    return around.stdout.getvalue()  # type: ignore[attr-defined]


def run_shell(script: str) -> dict[str, str]:
    """Return what a shell reads from it."""
    done = subprocess.run(
        ["sh", "-c", f"{script}\nenv -0"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=20, check=True
    )
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs if name.startswith("CUDA_")}
