"""Random tests are other ones in every run, and any run can be repeated."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.core

from tests.seeds import HOW_TO_REPEAT, RUN_SEED, VARIABLE, seeds

ROOT = Path(__file__).resolve().parents[2]


def seeds_of_another_run(**variables: str) -> list[int]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    command = [sys.executable, "-c", "from tests.seeds import seeds; print(seeds(2, 3))"]
    return list(ast.literal_eval(subprocess.check_output(command, cwd=ROOT, env=environment, text=True)))


def test_some_seeds_stay_and_the_others_change() -> None:
    one, another = seeds_of_another_run(), seeds_of_another_run()
    assert one[:2] == another[:2] == [1, 2]
    assert one[2:] != another[2:]


def test_a_run_can_be_repeated() -> None:
    assert seeds_of_another_run(**{VARIABLE: str(RUN_SEED)}) == seeds(2, 3)
    assert f"{VARIABLE}={RUN_SEED} " in HOW_TO_REPEAT


def test_hypothesis_starts_from_the_seed_of_the_run(pytestconfig) -> None:
    given = pytestconfig.option.hypothesis_seed
    assert str(hypothesis.core.global_force_seed) == str(given)
    assert not hypothesis.settings().derandomize
