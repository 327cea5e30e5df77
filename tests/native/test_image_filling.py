"""Blocks of an image on their way to the simulated GPU: none counts as there whose bytes are not the image's."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs  # noqa: F401
from tests.native.sim_machine import ROOT, Machine

PROGRAM = Path(__file__).with_name("image_filling.py")
BLOCKS, PIECE, BAD = 21, 4, 9  # of the program: the second block of the third piece
BEFORE = set(range(BAD // PIECE * PIECE))  # the pieces before that of the bad block

pytestmark = [
    pytest.mark.deadline(90),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-bindings and NumPy (pip install '.[images]')"),
]


def run(machine: Machine, verb: str, directory: Path) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), verb, str(directory)]
    env = machine.library_environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert "wrong" not in found, "a block is called done, and has other bytes"
    return found


def test_all_blocks_arrive_in_any_order(machine: Machine, tmp_path: Path) -> None:
    assert run(machine, "good", tmp_path) == {"raised": "", "whole": True, "done": list(range(BLOCKS))}


@pytest.mark.parametrize(
    ("verb", "why"),
    [("flipped", "are not those that were written"), ("cut_short", "Input/output error")],
)
def test_a_bad_block_is_named_and_what_comes_before_is_there(machine: Machine, tmp_path: Path, verb: str, why: str) -> None:
    """A client may wait for those alone. The reason is what the processor finds."""
    found = run(machine, verb, tmp_path)
    assert found["raised"].startswith("ImageDamaged: image image, arena model, offset 0x1200000: ")
    assert found["raised"].endswith(why)
    assert BAD not in found["done"]
    assert set(found["done"]) >= {*BEFORE, BAD - 1}


def test_a_missing_pack_is_named(machine: Machine, tmp_path: Path) -> None:
    raised = "ImageDamaged: image image, arena model, offset 0x0: pack 1 cannot be opened: No such file or directory"
    assert run(machine, "missing", tmp_path) == {"raised": raised, "done": []}


def test_the_rest_of_a_piece_with_a_bad_block_is_there(machine: Machine, tmp_path: Path) -> None:
    assert set(run(machine, "flipped", tmp_path)["done"]) >= {BAD + 1, BAD + 2}


def test_a_block_that_goes_astray_is_not_there(machine: Machine, tmp_path: Path) -> None:
    """On the disk it is good: only the GPU can see this."""
    found = run(machine, "astray", tmp_path)
    assert found["raised"] == (
        "OSError: the block at offset 0x1200000 of the image is good, but arrived in the GPU's memory with other bytes"
    )
    assert BAD not in found["done"]


def test_nothing_more_is_sent_to_a_starter_that_has_ended(machine: Machine, tmp_path: Path) -> None:
    found = run(machine, "unwanted", tmp_path)
    assert found == {"raised": "", "whole": False, "done": list(range(3 * PIECE))}
