"""The forward state's code in C: stopped at every step, killed, read by a crowd, and with its memory damaged.

The programs are those of tests/native/state; test_state_model.py has the protocol alone.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mpsd_client import Schema

from tests.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "clients/c/include"
STRICT = ["-Wall", "-Wextra", "-Wshadow", "-Werror", f"-I{INCLUDE}", "-DMPSD_NO_CUDA_H"]
SANITIZERS = {
    "plain": ["-O2"],
    "memory": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "threads": ["-O1", "-g", "-fsanitize=thread", "-fno-sanitize-recover=all"],
}

Program = Callable[..., list[int]]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Builds one of them, once, and runs it; the numbers that it prints."""
    built: dict[tuple[str, str], Path] = {}

    def run(name: str, sanitizer: str, *arguments: object, seconds: float = 25) -> list[int]:
        if (name, sanitizer) not in built:
            path = tmp_path_factory.mktemp("state") / name
            source = ROOT / f"tests/native/state/{name}.c"
            command = ["gcc", "-std=c11", *STRICT, *SANITIZERS[sanitizer], str(source), "-o", str(path), "-pthread", "-ldl"]
            subprocess.run(command, check=True)
            built[name, sanitizer] = path
        command = [str(built[name, sanitizer]), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return list(map(int, re.findall(r"\d+", done.stdout)))

    return run


def test_a_writer_that_stops_at_any_store_costs_no_record_and_misleads_no_reader(program: Program) -> None:
    died, overtaken = program("walk", "plain", 64, "once")
    assert died > 70
    assert overtaken > 50_000


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize(("record_bytes", "how"), [(8, "twice"), (64, "twice"), (200, "once"), (328, "once")])
def test_every_way_of_being_overtaken_in_a_read(program: Program, record_bytes: int, how: str) -> None:
    assert program("walk", "plain", record_bytes, how, seconds=110)[1] > 100_000


@pytest.mark.parametrize("record_bytes", [8, 200, 4096])
def test_readers_see_whole_updates_in_their_order(program: Program, record_bytes: int) -> None:
    """Under ThreadSanitizer: nothing that two threads touch is touched in two ways."""
    reads = program("crowd", "threads", record_bytes, 3000, "threads")[::2]
    assert all(reads)


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("record_bytes", [64, 1024, 65536])
def test_readers_see_whole_updates_for_long(program: Program, record_bytes: int) -> None:
    assert all(program("crowd", "plain", record_bytes, 50_000, "threads", seconds=110)[::2])


def test_a_killed_writer_leaves_what_it_had_told(program: Program) -> None:
    killed, in_the_middle = program("crowd", "plain", 4096, 40, "kills", 1)
    assert killed == 40
    assert in_the_middle <= killed


@pytest.mark.slow
@pytest.mark.deadline(240)
@pytest.mark.parametrize("seed", seeds(0, 1))
@pytest.mark.parametrize("record_bytes", [64, 4096])
def test_a_thousand_killed_writers(program: Program, record_bytes: int, seed: int) -> None:
    killed, in_the_middle = program("crowd", "plain", record_bytes, 1000, "kills", seed, seconds=220)
    assert killed == 1000
    assert in_the_middle > 20, "some are killed in the middle of an update, or this proves little"


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_whatever_is_written_there_a_reader_ends_with_an_error_or_an_honest_record(program: Program, seed: int) -> None:
    damaged, honest, meanwhile, honest_meanwhile = program("hostile", "memory", seed, 1000, 0.1)
    assert damaged > 500
    assert min(honest, meanwhile, honest_meanwhile) > 0


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_hostile_writers_for_long(program: Program, seed: int) -> None:
    damaged, *others = program("hostile", "memory", seed, 60_000, 5, seconds=110)
    assert damaged > 30_000
    assert min(others) > 0


def test_what_the_page_shows_compiles_and_says_what_python_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/state.md").read_text()
    writing, reading = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    [python] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    compile(python, "docs/state.md", "exec")
    struct, schema = writing.split("\n\n")[0].splitlines()
    code = writing.split("\n\n", 1)[1]
    source = tmp_path / "page.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <mpsd.h>\n"
        f"{struct}\n{schema}\n"
        "static int go_on_from(const void *record) { return ((const struct forward *)record)->step == 1 ? 0 : 3; }\n"
        "int main(void) { uint64_t generation = 1; int fd, rc = 2;\n"
        f"{code}\nfd = mpsd_state_fd(state);\n{reading.replace('go_on_from(', 'rc = go_on_from(')}\n"
        'fputs(schema, stdout); return rc; }\n'
    )
    command = ["gcc", "-std=c11", *STRICT[3:], str(source), "-o", str(tmp_path / "page"), "-pthread", "-ldl"]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "page")], capture_output=True, text=True, timeout=10, check=True)
    assert done.stdout == Schema.of({"step": "uint64", "token": "int64", "rng": "uint64[4]"}).text
