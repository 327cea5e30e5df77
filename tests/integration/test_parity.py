"""Parity of arenas on three simulated GPUs: one of them is lost, and rebuilt bit for bit."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpsd.images.directory import try_lock
from mpsd.images.rules.manifest import BLOCK_BYTES, block_offsets
from mpsd.images.store import Images
from tests.integration.machine import SIMULATOR, Machine, open_machine
from tests.integration.process import wait_for
from tests.integration.test_image_deaths import deadly_program
from tests.integration.test_images import mpsctl
from tests.integration.test_images import pytestmark as everyday
from tests.unit.images.making import flip

PROGRAM = Path(__file__).with_name("parity_program.py")
NAMES = ("left", "middle", "right")
DEATHS = [  # while blocks are stored, or while the image is completed: who is killed
    *[("add", "imager")] * 3, *[("add", "client")] * 2, *[("complete", "imager")] * 2, *[("complete", "client")] * 2,
    ("complete", "imager,client"),
]  # fmt: skip
pytestmark = everyday


@pytest.fixture(scope="module")
def three_gpus(programs: None) -> Iterator[Machine]:
    with open_machine() as machine:
        machine.keep_state_in_memory()
        machine.start(MPSD_SIM_GPUS="3")
        yield machine


def run(machine: Machine, verb: str, *words: str, status: int = 0, seconds: float = 80) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAM), verb, *words]
    done = subprocess.run(command, env=machine.variables, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def take(
    machine: Machine, directory: Path, names: Sequence[str], image: str, parity: int = 1, **variables: str
) -> "subprocess.CompletedProcess[str]":
    words = ("--group", "g", "--parity", str(parity), "--name", image, "--directory", str(directory))
    return mpsctl(machine, "image", "take", *names, *words, **variables)


def rebuild(
    machine: Machine, directory: Path, image: str, name: str, *more: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    return mpsctl(machine, "image", "restore", image, "--arena", name, "--directory", str(directory), *more, **variables)


def is_idle(images: Images) -> bool:
    """Return whether no process writes an image."""
    for name in os.listdir(images.directory.packs):
        with open(images.directory.path / "packs" / name, "rb") as file:
            if not try_lock(file.fileno()):
                return False
    return True


def lose(machine: Machine, name: str) -> None:
    """Let its memory be gone."""
    done = mpsctl(machine, "arena", "remove", name)
    assert done.returncode == 0, done.stderr


def test_each_arena_is_rebuilt_with_all_that_it_had(three_gpus: Machine, tmp_path: Path) -> None:
    """They have unequal sizes and holes; the image has no more bytes than the stripes."""
    [said] = run(three_gpus, "leave", "-1", "leave")
    expected, names = said["expected"], [f"{name}-1" for name in NAMES]
    taken = take(three_gpus, tmp_path, names, "p")
    assert taken.returncode == 0, taken.stderr
    with Images.open(tmp_path) as images:
        stripes = {offset for each in expected.values() for offset in each}
        assert images.find("p").content_bytes == len(stripes) * BLOCK_BYTES < sum(map(len, expected.values())) * BLOCK_BYTES
    for number, name in enumerate(names):
        lose(three_gpus, name)
        restored = rebuild(three_gpus, tmp_path, "p", name, "--gpu", str((number + 1) % 3))
        assert restored.returncode == 0, restored.stderr
        [found] = run(three_gpus, "look", name)
        assert found == {"expected": expected[name], "layout": f"layout of {NAMES[number]}", "step": 7}
    lose(three_gpus, names[0])
    [found] = run(three_gpus, "use", str(tmp_path), "p", names[0])
    assert found["expected"] == expected[names[0]], "a program can use it while it is rebuilt"


@pytest.mark.slow
@pytest.mark.root  # leases
def test_the_gpu_of_an_arena_is_lost(three_gpus: Machine, tmp_path: Path) -> None:
    """The arena is rebuilt on another GPU, of what the others' GPUs have, while mpsd gives nobody the lost one.

    Before, while mpsd still has it on its lost GPU, one more arena: that of the lost GPU counts as missing.  Then both others
    are on one GPU, and have more blocks than are read at a time."""
    [said] = run(three_gpus, "leave", "-2", "seal", "3")
    names, simulator = [f"{name}-2" for name in NAMES], SIMULATOR / "bin/mpsd-sim"
    assert take(three_gpus, tmp_path, names, "p", 2).returncode == 0
    three_gpus.run("xid", "1", "79", program=simulator)
    gpu = three_gpus.wait_for_journal("gpu.drained")["gpu"]
    three_gpus.run("lose", "1", program=simulator)
    try:
        made = mpsctl(three_gpus, "lease", "create", "rebuild", "--gpu", "0,2", "--token", "of-the-rebuilding")
        assert made.returncode == 0, made.stderr
        for name in names[:2]:
            lose(three_gpus, name)
            restored = rebuild(three_gpus, tmp_path, "p", name, "--gpu", "2", MPSD_LEASE="of-the-rebuilding")
            assert restored.returncode == 0, restored.stderr
    finally:
        three_gpus.run("return", "1", program=simulator)
        mpsctl(three_gpus, "pardon", gpu)
    for name in names[:2]:
        [found] = run(three_gpus, "look", name)
        assert found["expected"] == said["expected"][name]


@pytest.mark.slow
def test_a_stripe_that_cannot_be_rebuilt_says_so(three_gpus: Machine, tmp_path: Path) -> None:
    """Another arena was written there after the barrier.  What is left can be had."""
    [said] = run(three_gpus, "append", str(tmp_path), "-3", "1")
    lose(three_gpus, "left-3")
    refused = rebuild(three_gpus, tmp_path, "append-3", "left-3", "--name", "whole")
    where = f"image append-3, arena left-3, offset {said['changed']:#x}: it cannot be rebuilt"
    why = f"{where}: arena right-3 has changed there since the image was taken"
    assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr
    assert mpsctl(three_gpus, "arena", "remove", "whole").returncode == 1, "a part of it exists"
    partly = rebuild(three_gpus, tmp_path, "append-3", "left-3", "--partial", "--json")
    assert partly.returncode == 1, partly.stderr
    assert json.loads(partly.stdout)["lost"] == [[said["changed"], BLOCK_BYTES]]
    [found] = run(three_gpus, "look", "left-3")
    expected = said["expected"]["left-3"]
    assert [offset for offset in expected if found["expected"][offset] != expected[offset]] == [str(said["changed"])]


def test_what_is_missing_is_named(three_gpus: Machine, tmp_path: Path) -> None:
    """Two arenas are lost; or one that the image does not know is asked for; or the parity is damaged."""
    run(three_gpus, "leave", "-4", "leave")
    names = [f"{name}-4" for name in NAMES]
    assert take(three_gpus, tmp_path, names, "p").returncode == 0
    lose(three_gpus, "middle-4")
    for arena, why in (("", "name the one that is lost"), ("other", f"has the parity of {', '.join(names)}: name the one")):
        words = ("--arena", arena) if arena else ()
        refused = mpsctl(three_gpus, "image", "restore", "p", *words, "--directory", str(tmp_path))
        assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr
    with Images.open(tmp_path) as images:
        place = next(iter(images.find("p").places()))
        flip(tmp_path / f"packs/{place.pack}", place.slot * BLOCK_BYTES + BLOCK_BYTES // 2)
        [damage] = images.verify(["p"])
        assert "are not those that were written" in damage.why
    refused = rebuild(three_gpus, tmp_path, "p", "middle-4")
    where = f"offset {damage.offset:#x}: it cannot be rebuilt: the bytes in pack"
    assert (refused.returncode, where in refused.stderr) == (1, True), refused.stderr
    lose(three_gpus, "right-4")
    refused = rebuild(three_gpus, tmp_path, "p", "middle-4")
    assert (refused.returncode, "arena right-4 is needed: " in refused.stderr) == (1, True), refused.stderr


def test_parity_needs_two_gpus(three_gpus: Machine, tmp_path: Path) -> None:
    [said] = run(three_gpus, "refusals", str(tmp_path))
    assert said["alone"] == "ValueError: parity is of the arenas of a group, and of no epoch"
    assert said["one gpu"].startswith("ImageError: parity needs each arena on another GPU: 2 of them are on GPU ")
    assert said["three"] == "ImageError: parity for 3 lost GPUs; accepted: 1 or 2"
    assert said["good"] == "good"
    alone = mpsctl(three_gpus, "image", "take", "one", "--parity", "1", "--directory", str(tmp_path))
    assert (alone.returncode, "--parity needs two arenas, on two GPUs, at least" in alone.stderr) == (1, True)


@pytest.mark.slow
def test_mpsctl_takes_parity_of_arenas_whose_writer_it_stops(three_gpus: Machine, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "stay", "-8"]
    with subprocess.Popen(
        command, env=three_gpus.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:  # fmt: skip
        assert writer.stdout
        expected = json.loads(writer.stdout.readline())["expected"]
        words = ("--group", "g", "--parity", "1", "--name", "p", "--directory", str(tmp_path), "--freeze", "1s")
        taken = mpsctl(three_gpus, "image", "take", *expected, *words)
        assert taken.returncode == 0, taken.stderr
        assert "its writer stood still for" in taken.stdout
        restored = rebuild(three_gpus, tmp_path, "p", "middle-8", "--name", "copy-8")
        assert restored.returncode == 0, restored.stderr
        writer.communicate("", timeout=60)
    [found] = run(three_gpus, "look", "copy-8")
    assert found["expected"] == expected["middle-8"]


@pytest.mark.slow
@pytest.mark.parametrize("parity", [1, 2])
def test_parity_is_that_of_its_barrier_while_the_arenas_are_written(three_gpus: Machine, tmp_path: Path, parity: int) -> None:
    """They allocate and commit in between, too.  As many of them are lost as parity is for."""
    said = run(three_gpus, "write_on", str(tmp_path), f"-5{parity}", "4", str(parity))
    last = said[-1]
    assert all(each["copied"] == each["to_copy"] for each in said)
    assert sum(each["direct"] for each in said) > 0, "nothing was written while it was copied"
    names = list(last["expected"])
    for first in range(len(names)):
        lost = [names[(first + number) % 3] for number in range(parity)]
        for name in lost:
            lose(three_gpus, name)
        for name in lost:
            restored = rebuild(three_gpus, tmp_path, last["name"], name)
            assert restored.returncode == 0, restored.stderr
            [found] = run(three_gpus, "look", name)
            assert (found["expected"], found["layout"]) == (last["expected"][name], f"3 of {name}")


@pytest.mark.slow
def test_the_second_parity_stands_for_a_changed_block_or_a_damaged_one(three_gpus: Machine, tmp_path: Path) -> None:
    """Not for both."""
    [said] = run(three_gpus, "append", str(tmp_path), "-7", "2")
    expected = said["expected"]["left-7"]
    lose(three_gpus, "left-7")
    restored = rebuild(three_gpus, tmp_path, "append-7", "left-7")
    assert restored.returncode == 0, restored.stderr
    [found] = run(three_gpus, "look", "left-7")
    assert found["expected"] == expected
    lose(three_gpus, "left-7")
    with Images.open(tmp_path) as images:
        image = images.find("append-7")
        numbers = list(block_offsets(image.arenas[0].facts))
        for place in (image.arenas[0].place(number) for number in range(len(numbers))):
            flip(tmp_path / f"packs/{place.pack}", place.slot * BLOCK_BYTES + 77)
        assert {damage.arena for damage in images.verify()} == {"P"}
    refused = rebuild(three_gpus, tmp_path, "append-7", "left-7", "--partial", "--json")
    assert refused.returncode == 1, refused.stderr
    assert json.loads(refused.stdout)["lost"] == [[said["changed"], BLOCK_BYTES]]
    [found] = run(three_gpus, "look", "left-7")
    assert [offset for offset in expected if found["expected"][offset] != expected[offset]] == [str(said["changed"])]


@pytest.mark.slow
@pytest.mark.deadline(500)
def test_a_lost_arena_is_rebuilt_whoever_was_killed(three_gpus: Machine, tmp_path: Path) -> None:
    """The imager or mpsctl, at a random call, while parity is taken and while the arena is rebuilt: ten of ten."""
    chosen, place = random.Random(54), tmp_path / "images"
    [said] = run(three_gpus, "leave", "-6", "leave")
    names, deadly = [f"{name}-6" for name in NAMES], {"MPSD_IMAGER": str(deadly_program(tmp_path))}
    assert take(three_gpus, place, names, "round.0").returncode == 0
    fates, killed = set(), 0
    for number, (when, who) in enumerate(chosen.sample(DEATHS, len(DEATHS)), 1):
        victims = deadly | {"DEADLY_VICTIMS": who}
        call = f"add.{chosen.randrange(1, 10)}" if when == "add" else str(chosen.randrange(1, 20))
        taken = take(three_gpus, place, names, f"round.{number}", 1 + number % 2, DEADLY_CALL=call, **victims)
        with Images.open(place) as images:
            wait_for("the imager to end", lambda: is_idle(images))
            listing = images.listing()
            assert (listing.damaged, list(images.verify())) == ({}, [])
            newest = listing.images[-1].name
        fates.add((taken.returncode == 0, newest == f"round.{number}"))
        lost = chosen.choice(names)
        lose(three_gpus, lost)
        if rebuild(three_gpus, place, newest, lost, DEADLY_CALL=f"read.{chosen.randrange(1, 5)}", **victims).returncode:
            killed += 1
            mpsctl(three_gpus, "arena", "remove", lost)  # mpsd would do so after a minute
            restored = rebuild(three_gpus, place, newest, lost)
            assert restored.returncode == 0, restored.stderr
        [found] = run(three_gpus, "look", lost)
        assert found["expected"] == said["expected"][lost]
    assert {(False, False), (False, True)} <= fates, "killed before the manifest was there, and after"
    assert killed > 3
