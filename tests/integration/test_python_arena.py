"""Arenas from Python: real processes, the real daemon, the simulated driver."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.machine import ROOT, Machine, open_machine

PROGRAM = Path(__file__).with_name("arena_program.py")
EXAMPLE = ROOT / "clients/python/examples/count_starts.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def vault(programs: None) -> Iterator[Machine]:
    """Yield one daemon with two GPUs for all tests of this file; each test has a separate arena."""
    with open_machine() as machine:
        machine.variables["MPSD_SIM_GPUS"] = "2"
        machine.start()
        yield machine


def run(machine: Machine, verb: str, *words: str, status: int = 0, **variables: str) -> Any:
    """Run the program and return its report, or a list of reports if there are several."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), verb, *words],
        env=machine.variables | variables,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == status, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return said[0] if len(said) == 1 else said


def begin(machine: Machine, *words: str, program: Path = PROGRAM) -> "subprocess.Popen[str]":
    """Start a program that waits for a line before it continues."""
    command = [sys.executable, str(program), *words]
    return subprocess.Popen(command, env=machine.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("on\n")
    process.stdin.flush()


def test_what_a_killed_process_committed_is_there_for_the_next_one(vault: Machine) -> None:
    """Bit by bit, at the same addresses; what it did after its last commit is not, and a dropped block is back."""
    before = run(vault, "write_and_die", "killed", status=-signal.SIGKILL)
    after = run(vault, "take_over", "killed")
    assert (before["generation"], after["generation"]) == (1, 2)
    assert after == {
        "base": before["base"],
        "generation": 2,
        "blocks": [2, 2],
        "names": ["weights", "slanted", "kv"],
        "step": 7,
        "strides": [8, 1],
        "weights": True,
        "kv": True,
        "reading": False,
    }
    assert run(vault, "take_over", "killed")["step"] == 8, "an adopter commits as well"


def test_a_reader_is_beside_a_writer_and_another_writer_is_not(vault: Machine) -> None:
    refused, reader = run(vault, "read_beside", "shared")
    assert "ARENA_BUSY" in refused["second"]
    assert reader["right"] is True
    assert reader["capsule"] == "dltensor_versioned"
    assert reader["plain"].startswith("BufferError: tensor kv is read-only")
    assert reader["interface"]["data"][1] is True
    assert reader["allocate"].startswith("PermissionError")
    assert reader["commit"].startswith("PermissionError")


def test_a_reader_follows_its_writer(vault: Machine) -> None:
    said = run(vault, "let_follow", "followed")
    assert said["first"] == {"names": ["weights", "slanted", "kv"], "changed": False}
    gone = said["second"].pop("gone")
    assert said["second"] == {
        "changed": True,
        "names": ["kv", "more"],
        "extra": {"step": 8},
        "right": True,
        "blocks": [2, 2],
        "again": False,
    }
    assert gone == "KeyError: 'weights'"


def test_an_arena_is_a_readers_and_a_writers_as_mpsd_says(vault: Machine) -> None:
    said = run(vault, "terms", "terms")
    assert said["none"] is None
    assert said["kept"] == [1, True, 7]
    assert said["uncommitted"].startswith("OSError: [Errno 16] arena terms: yielding what is not committed")
    assert (said["reading"], said["writing"], said["generation"], said["right"]) == ([False, True], [True, False], 2, True)
    assert said["allocate"].startswith("PermissionError")
    assert said["stale"].startswith("OSError: [Errno 116] ")


def test_what_cannot_be_is_refused_in_words_and_leaves_the_arena_whole(vault: Machine) -> None:
    said = run(vault, "refusals", "refused")
    expected = {
        "again": "FileExistsError: ",
        "unknown": "Refused: NO_SUCH_ARENA: arena.open: no arena is called",
        "no layout": "LayoutError: no layout was committed to arena refused",
        "capacity": "OSError: [Errno 28] ",
        "free": "FileNotFoundError: ",
        "outside": "LayoutError: tensor x: 4 bytes at 0x",
        "text": "TypeError: a layout is a Layout, a mapping or bytes, and not str",
        "large": "OSError: [Errno 22] ",
        "view": "LayoutError: tensor without a name: 7340032 bytes at 0x",
        "type": "LayoutError: no data type 'int9' is known",
        "closed": "ValueError: arena refused is closed",
        "twice": "nothing",
        "none": "LayoutError: no layout was committed to arena refused",
        "still": "nothing",
    }
    assert {name: said[name][: len(words)] for name, words in expected.items()} == expected


def test_a_layout_of_another_program_is_handed_out_and_not_believed(vault: Machine) -> None:
    said = run(vault, "foreign_layouts", "foreign")
    assert said["bytes"] == [True, "LayoutError: the layout is no JSON: " + said["bytes"][1].partition("JSON: ")[2]]
    assert said["mapping"] == [3, "LayoutError: the layout is not of the format mpsd-tensors-1"]
    assert said["beyond"][1].startswith("LayoutError: tensor beyond: 16 bytes at 0x")
    assert said["missing"] == [["beyond"], "KeyError: 'nothing'"]


def test_nothing_is_unmapped_while_somebody_has_it(vault: Machine) -> None:
    said = run(vault, "lending", "lent")
    out = "BufferError: arena lent has 1 tensors out: drop them before you close it"
    assert (said["capsule"], said["lent"], said["interface"], said["closed"]) == (out, 1, out, True)
    assert said["other device"].startswith("BufferError: tensor kv is on device (2, 0)")
    assert said["copy"].startswith("BufferError: ")
    assert (said["bfloat16"], said["device"]) == (False, [2, 0])
    assert said["strides"] == [None, [32, 4], "<f4", 3]


def test_leaving_a_with_block_tells_of_a_view_and_hides_no_exception(vault: Machine) -> None:
    said = run(vault, "leaving_with_a_view", "left")
    assert said["raised"].startswith("BufferError: arena left has 1 tensors out")
    assert run(vault, "leaving_with_a_view", "failed", "indeed") == {"raised": "KeyError: 'of mine'"}


def test_a_child_after_fork_cannot_touch_its_parents_arena(vault: Machine) -> None:
    assert run(vault, "fork", "forked") == {"child": 0, "right": True}


def test_pytorchs_allocator_takes_from_the_chosen_arena_and_gives_back_when_the_gpu_is_idle(vault: Machine) -> None:
    """Its two functions, called as PyTorch does: by address, in any thread, also after the arena is gone."""
    assert run(vault, "allocator", "pooled") == {
        "unchosen": None,
        "elsewhere": None,
        "too much": None,
        "no bytes": None,
        "no device": None,
        "offsets": [0, 4 * MIB],
        "blocks": 2,
        "after a free without a context": 2,
        "third": 0,
        "blocks then": 2,
        "second": True,
        "forgotten": 2,
        "after the end": None,
    }


def test_the_example_finds_its_number_after_each_death(vault: Machine) -> None:
    """As the example's docstring describes: killed while it waits, started again."""
    for start in (1, 2):
        with begin(vault, "--arena", "example", "--wait", program=EXAMPLE) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"start {start}, generation {start}, at 0x")
            process.kill()


def test_a_tensor_is_copied_out_and_in_only_as_it_is(vault: Machine) -> None:
    said = run(vault, "copies", "copied")
    assert said["same"] is True
    assert said["gaps"].startswith("ValueError: tensor slanted is not contiguous: [3, 5] in strides [8, 1]")
    assert said["size"] == "ValueError: tensor kv takes 2097152 bytes, not 3"
    assert said["text"].startswith("TypeError")
    assert said["numbers"] == "nothing", "bytes are counted, whatever they are"
    assert said["reading"].startswith("ValueError: tensor kv is read-only")


def test_an_arena_is_on_its_gpu_whatever_number_that_has_in_a_process(vault: Machine) -> None:
    """CUDA counts what CUDA_VISIBLE_DEVICES leaves; mpsd counts all."""
    gpus = vault.uuids()
    assert run(vault, "on_gpu", "second", "1") == {"gpu": gpus[1], "device": [2, 1], "said": "hello"}
    alone = run(vault, "on_gpu", "second", CUDA_VISIBLE_DEVICES="1")
    assert alone == {"gpu": gpus[1], "device": [2, 0], "said": "hello"}
    hidden = run(vault, "on_gpu", "second", CUDA_VISIBLE_DEVICES="0")
    assert hidden["refused"].startswith(f"LookupError: {gpus[1]} is not visible to CUDA in this process; visible: {gpus[0]}")


def test_what_nobody_names_any_more_is_freed_when_that_is_asked_for(vault: Machine) -> None:
    """Only what came from earlier processes: PyTorch's blocks and others of this one may be used without names."""
    said = run(vault, "leave_unused", "unused")
    assert said == {"before": 2 * MIB, "freed": 2 * MIB, "again": 0, "left": 2, "names": ["weights"]}


@pytest.mark.slow
def test_a_restart_of_mpsd_is_not_noticed(vault: Machine) -> None:
    """The arena stays open, allocations made in between are committed, and the next process adopts all of it."""
    with begin(vault, "across_a_restart", "restarted") as process:
        base = heard(process)["base"]
        vault.kill_daemon()
        tell(process)
        vault.start()
        assert heard(process) == {"generation": 1, "base": base}
        assert process.wait(20) == -signal.SIGKILL
    after = run(vault, "take_over", "restarted")
    assert (after["generation"], after["step"], after["base"], after["kv"]) == (2, 9, base, True)
    assert after["blocks"] == [2, 2, 2]


@pytest.mark.slow
def test_a_second_writer_waits_for_the_first_and_hears_ctrl_c_meanwhile(vault: Machine) -> None:
    with begin(vault, "hold", "wanted") as first:
        assert heard(first) == {"generation": 1}
        with begin(vault, "wait_for_it", "wanted") as impatient, begin(vault, "wait_for_it", "wanted") as patient:
            assert heard(impatient) == heard(patient) == {"waits": True}
            impatient.send_signal(signal.SIGINT)
            assert heard(impatient) == {"interrupted": True}
            assert patient.poll() is None
            tell(first)
            assert heard(patient) == {"generation": 2}
            assert (first.wait(20), patient.wait(20), impatient.wait(20)) == (0, 0, 0)
