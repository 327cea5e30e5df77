"""Fuzz the readers of foreign bytes: `python -m tests.fuzz [--seconds N] [--keep] [NAME...]`; prose: README.md in this folder.

A C reader runs under clang's libFuzzer, a Python reader under atheris, which is libFuzzer too; both start from corpus/NAME. An
input that breaks a reader is written to a file, whose path is printed: put it into corpus/NAME, together with the fix.
"""

import argparse
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fuzz.parsers import C_TARGETS, PYTHON_TARGETS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORPUS = HERE / "corpus"
MOST_BYTES = 4096  # of an input
HANGS_SECONDS = 10
_MEMORY_MB = 2048
_EMPTY = "#include <stdint.h>\n#include <stddef.h>\nint LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { return 0; }\n"


def why_not(name: str) -> str:
    """What is lacking here to fuzz this reader; "" if nothing is."""
    if name in C_TARGETS:
        return _why_no_libfuzzer()
    return "" if importlib.util.find_spec("atheris") else "no atheris here (pip install atheris)"


@functools.cache
def _why_no_libfuzzer() -> str:
    """Compile and link an empty entry point: clang is there without its runtime, which is another package."""
    clang = shutil.which("clang")
    if not clang:
        return "no clang here (apt-get install clang)"
    flags = ["-fsanitize=fuzzer,address,undefined", "-x", "c", "-", "-o", os.devnull]
    if subprocess.run([clang, *flags], input=_EMPTY, capture_output=True, text=True, check=False).returncode == 0:
        return ""
    version = subprocess.run([clang, "-dumpversion"], capture_output=True, text=True, check=True).stdout.partition(".")[0]
    return f"clang links no libFuzzer here (apt-get install libclang-rt-{version}-dev)"


def build() -> None:
    subprocess.run(["make", "-s", "-C", str(HERE / "c"), f"-j{os.cpu_count()}"], check=True)


def command(name: str) -> list[str]:
    if name in C_TARGETS:
        return [str(HERE / "c/build" / name)]
    return [sys.executable, "-m", "tests.fuzz.python", name]


def mix(place: Path) -> Path:
    """The corpora of all Python readers as one, for `all` (python.py)."""
    place.mkdir(parents=True)
    for number, name in enumerate(sorted(PYTHON_TARGETS)):
        for path in (CORPUS / name).iterdir():
            (place / f"{name}-{path.name}").write_bytes(bytes([number]) + path.read_bytes())
    return place


def fuzz(
    name: str, seconds: int, found: Path, seed: int = 0, corpus: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """The reader under random bytes.  found: takes inputs that reach something new, and those that break it.  seed 0: any."""
    (found / "new").mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", "-len_control=0", f"-timeout={HANGS_SECONDS}",
        f"-rss_limit_mb={_MEMORY_MB}", f"-seed={seed}", f"-artifact_prefix={found}/", "-verbosity=0", "-print_final_stats=1",
    ]  # fmt: skip
    return subprocess.run(
        [*command(name), *flags, str(found / "new"), str(corpus or CORPUS / name)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        check=False, timeout=seconds + 20 * HANGS_SECONDS,
    )  # fmt: skip


def keep(name: str, found: Path) -> None:
    """Put into the corpus what reaches something that the corpus does not."""
    subprocess.run([*command(name), "-merge=1", str(CORPUS / name), str(found / "new")], cwd=ROOT, check=True)


def _run(names: Sequence[str], seconds: int, *, is_kept: bool) -> Iterator[str]:
    """The names of those that broke."""
    for name in names:
        if why := why_not(name):
            print(f"{name}: skipped: {why}")
            continue
        found = Path(tempfile.mkdtemp(prefix=f"mpsd-fuzz-{name}-"))
        done = fuzz(name, seconds, found)
        if done.returncode:
            print(f"{name}: BROKEN; the input is in {found}\n{done.stdout}")
            yield name
            continue
        [runs] = [line.split()[-1] for line in done.stdout.splitlines() if "number_of_executed_units" in line]
        print(f"{name}: {runs} inputs, {len(list((found / 'new').iterdir()))} new, nothing broke")
        if is_kept:
            keep(name, found)
        shutil.rmtree(found)


def main() -> int:
    known = [*C_TARGETS, *PYTHON_TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the readers of foreign bytes.")
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (default: 60)")
    parser.add_argument("--keep", action="store_true", help="put what reaches something new into the corpus")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all, which are {', '.join(known)}")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(known):
        parser.error(f"no reader is called {', '.join(sorted(unknown))}")
    names = asked.names or known
    if any(name in C_TARGETS and not why_not(name) for name in names):
        build()
    return int(bool(list(_run(names, asked.seconds, is_kept=asked.keep))))


if __name__ == "__main__":
    sys.exit(main())
