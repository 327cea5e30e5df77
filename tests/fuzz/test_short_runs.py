"""Each corpus and a short time of random bytes, from the run's own seed; README.md explains long runs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.__main__ import CORPUS, HERE, build, fuzz, mix, why_not
from tests.fuzz.parsers import C_TARGETS, PYTHON_TARGETS
from tests.seeds import RUN_SEED

SECONDS = int(os.environ.get("MPSD_FUZZ_SECONDS", "1"))  # of each reader in C
PYTHON_SECONDS = 10 * SECONDS  # of all in Python together: starting atheris takes longer than a short run
pytestmark = [pytest.mark.slow, pytest.mark.deadline(PYTHON_SECONDS + 280)]


@pytest.fixture(scope="module")
def why_no_libfuzzer() -> str:
    """Build the readers under libFuzzer; if that is not possible, with any compiler's sanitizers, and return the reason."""
    if why := why_not(next(iter(C_TARGETS))):
        subprocess.run(["make", "-s", "-j2", "-C", str(HERE / "c"), "replay"], check=True)
    else:
        build()
    return why


@pytest.mark.parametrize("name", C_TARGETS)
def test_random_bytes_break_no_reader_in_c(why_no_libfuzzer: str, name: str, tmp_path: Path) -> None:
    """Without libFuzzer each input of the corpus is tried once, and the test is skipped after it: it showed no more."""
    if not why_no_libfuzzer:
        assert_unbroken(fuzz(name, SECONDS, tmp_path, RUN_SEED), tmp_path)
        return
    command = [str(HERE / "c/build" / f"replay-{name}"), str(CORPUS / name)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    pytest.skip(f"only the corpus: {why_no_libfuzzer}")


def test_random_bytes_break_no_reader_in_python(tmp_path: Path) -> None:
    if why := why_not(next(iter(PYTHON_TARGETS))):
        pytest.skip(why)
    found = tmp_path / "found"
    assert_unbroken(fuzz("all", PYTHON_SECONDS, found, RUN_SEED, mix(tmp_path / "corpus")), found)


def assert_unbroken(done: "subprocess.CompletedProcess[str]", found: Path) -> None:
    broken = {path.name: path.read_bytes().hex() for path in found.iterdir() if path.is_file()}
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{broken}"
