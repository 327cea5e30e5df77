"""Every input that ever broke a reader in Python, or reaches new code in it, and some new ones."""

import random
import time

import pytest

from tests.fuzz.__main__ import CORPUS
from tests.fuzz.parsers import PYTHON_TARGETS
from tests.seeds import RUN_SEED

MUTATIONS, SECONDS = 100, 0.5  # at most, of each reader in each run; libFuzzer does the rest (test_short_runs.py)
TELLING = (b"", b"\0", b"\xff", b"\n", b":", b"9" * 5000, b"-1", b"\xe2\x80\xae", b"\x7f\xff\xff\xff", b"}" * 9, b"[" * 2000)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, left out, repeated, or replaced by what readers trip over."""
    for _ in range(1 + chance.randrange(4)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((0, 1, 1, 4, 50)))
        new = chance.choice((chance.randbytes(end - at), chance.choice(TELLING), data[at:end] * 2))
        data = data[:at] + new + data[end:]
    return data


@pytest.mark.parametrize("name", PYTHON_TARGETS)
def test_no_input_breaks_a_reader(name: str) -> None:
    chance = random.Random(f"{RUN_SEED} {name}")
    known = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    until = time.monotonic() + SECONDS
    for number, data in enumerate([*known, *(mutated(chance.choice(known), chance) for _ in range(MUTATIONS))]):
        if number >= len(known) and time.monotonic() > until:
            break
        try:
            PYTHON_TARGETS[name].read(data)
        except Exception as exc:
            raise AssertionError(f"{name} breaks; for corpus/{name}: bytes.fromhex({data.hex()!r})") from exc
