"""The front end and the daemon read the words of `quit` alike, so that the one waits for the other; no number overflows."""

import random
import subprocess
from pathlib import Path

import pytest

from mpsd.commands.language.grammar import parse_quit, parse_words
from tests.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 366 * 24 * 3600
TABLE = {  # None: no `quit`; -1: for ever
    b"quit": -1,
    b"  quit \t": -1,
    b"quit\r": -1,
    b"quit -t 5": 5,
    b"quit\t-t\t5": 5,
    b"quit -t 0": 0,
    b"quit -t +5": 5,
    b"quit -t 1.5": 1,
    b"quit -t 5x": 5,
    b"quit -t -0": 0,
    b"quit -t": -1,
    b"quit -t x": -1,
    b"quit -t -": -1,
    b"quit -t --5": -1,
    b"quit -t -1": -1,
    b"quit -t -99999999999999999999": -1,
    b"quit -t 31622400": LONGEST,
    b"quit -t 31622401": LONGEST,
    b"quit -t 2147483648": LONGEST,
    b"quit -t 9223372036854775808": LONGEST,
    b"quit -t 18446744073709551617": LONGEST,
    b"quit -t " + b"9" * 4000: LONGEST,
    b"quit -t 00000000000000000000000000000005": 5,
    b"quit -f -t 5": -1,
    b"quit -t5": -1,
    b"quitter": None,
    b"qui": None,
    b"x quit": None,
    b"": None,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, control = tmp_path_factory.mktemp("quit") / "quit", ROOT / "clients/control"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f"-I{control}"]
    subprocess.run(["cc", *flags, ROOT / "tests/native/quit_words.c", control / "quit.c", "-o", out], check=True)
    return out


def by_front_end(program: Path, lines: list[bytes]) -> list[int | None]:
    done = subprocess.run([program], input=b"".join(line + b"\n" for line in lines), capture_output=True, check=True)
    return [None if word == b"no" else int(word) for word in done.stdout.split()]


def by_daemon(line: bytes) -> int | None:
    words = parse_words(line)
    if words.name != "quit":
        return None
    seconds = parse_quit(words.arguments).timeout_seconds
    return -1 if seconds is None else int(seconds)


def test_the_words_of_quit(program: Path) -> None:
    assert dict(zip(TABLE, by_front_end(program, list(TABLE)), strict=True)) == TABLE
    assert {line: by_daemon(line) for line in TABLE} == TABLE


@pytest.mark.parametrize("seed", seeds(3, 3))
def test_random_words_of_quit(program: Path, seed: int) -> None:
    rng = random.Random(seed)
    parts = [b"quit", b"-t", b" ", b"\t", b"\r", b"-", b"+", b"0", b"7", b"999999999", b"x", b".", b"\xff"]
    lines = [b"quit " + b"".join(rng.choices(parts, k=rng.randrange(8))) for _ in range(2000)]
    assert by_front_end(program, lines) == [by_daemon(line) for line in lines]
