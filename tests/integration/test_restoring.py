"""Arenas made of images: the imager fills them, another process adopts them; nothing stays of one that fails."""

import hashlib
import json
import shutil
import signal
from pathlib import Path

import pytest
from mpsd_client import calls
from mpsd_client._restoring import ImageSource

from mpsd.images.rules.manifest import BLOCK_BYTES, block_offsets
from mpsd.images.store import Images
from tests.integration.machine import Machine
from tests.integration.test_images import mpsctl, pytestmark, run, step_of, vault
from tests.unit.images.making import flip

__all__ = ["pytestmark", "vault"]

NAMES = {"embed", "layers.0", "layers.1"}
Taken = tuple[Path, dict[str, str]]


@pytest.fixture(scope="module")
def taken(vault: Machine, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    """Return a directory with the image `kept`, and the hash of each of its blocks; its arena is removed."""
    directory = tmp_path_factory.mktemp("images")
    [said] = run(vault, "keep", str(directory))
    assert mpsctl(vault, "arena", "remove", "kept").returncode == 0
    return directory, said["expected"]


def arenas(machine: Machine) -> list[str]:
    return [each["name"] for each in json.loads(mpsctl(machine, "arenas", "--json").stdout)]


def test_another_process_adopts_what_was_restored(vault: Machine, taken: Taken) -> None:
    """And what it changes is not in the image."""
    directory, expected = taken
    restore = ["image", "restore", "kept", "--directory", str(directory)]
    for name, words in (("kept", ["--mode", "640", "--ttl", "1h"]), ("again", ["--name", "again"])):
        done = mpsctl(vault, *restore, *words, "--json")
        assert done.returncode == 0, done.stderr
        restored = json.loads(done.stdout)
        assert (restored["name"], restored["writer_pid"], restored["used_bytes"]) == (name, None, 10 << 20)
        assert (restored["mode"], restored["ttl_seconds"]) == ((0o640, 3600.0) if name == "kept" else (0o600, None))
        [found] = run(vault, "look", name)
        assert found == {"expected": expected, "layout": "layout of kept", "step": 7, "text": "seven"}
    refused = mpsctl(vault, *restore)
    assert refused.returncode == 1
    assert "an arena has the name kept already" in refused.stderr
    assert "kept" in arenas(vault), "the other one is not touched"


@pytest.mark.parametrize("words", [("none",), ("kept", "--arena", "other")])
def test_an_image_that_is_not_there(vault: Machine, taken: Taken, words: tuple[str, ...]) -> None:
    directory, _ = taken
    done = mpsctl(vault, "image", "restore", *words, "--name", "missing", "--directory", str(directory))
    assert done.returncode == 1
    assert done.stderr.startswith("mpsctl image restore: ")
    assert "missing" not in arenas(vault)


def test_an_arena_whose_maker_is_killed_expires(vault: Machine, taken: Taken) -> None:
    """A minute after it: no process would remove it."""
    directory, _ = taken
    run(vault, "die_restoring", str(directory), status=-signal.SIGKILL)
    found = json.loads(mpsctl(vault, "arena", "show", "half", "--json").stdout)
    assert (found["ttl_seconds"], found["commit"]) == (60.0, 0)


@pytest.fixture(scope="module")
def tensors(vault: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the image `tensors`, of embed, layers.0 and layers.1 with a block each."""
    directory = tmp_path_factory.mktemp("images")
    run(vault, "keep_tensors", str(directory))
    return directory


def test_an_arena_is_used_before_its_last_byte_is_there(vault: Machine, tensors: Path, tmp_path: Path) -> None:
    """The last byte never comes: its block is damaged. The arena is gone when its user closes it."""
    shutil.copytree(tensors, tmp_path / "images")
    with Images.open(tmp_path / "images") as images:
        place = images.find("tensors").arenas[0].place(2)
    flip(tmp_path / f"images/packs/{place.pack}", place.slot * BLOCK_BYTES + 9)
    [said] = run(vault, "restore_in_use", str(tmp_path / "images"), "early")
    assert said.pop("layers.0") == said.pop("embed") == "right"
    damage = "ImageError: image tensors, arena tensors, offset 0x400000: the bytes in pack"
    assert [said.pop(name)[: len(damage)] for name in ("layers.1", "ready", "commit")] == [damage] * 3
    assert said == {"others find": "", "unknown": "LayoutError: the image has no tensor layer, nor layer.*"}
    assert "early" not in arenas(vault)


def test_an_arena_that_was_used_while_it_came_is_complete(vault: Machine, tensors: Path) -> None:
    [said] = run(vault, "restore_in_use", str(tensors), "late")
    assert {name: said[name] for name in ("layers.0", "layers.1", "embed")} == dict.fromkeys(said.keys() & NAMES, "right")
    assert (said["ready"], said["commit"], said["others find"]) == ("nothing", "nothing", "")
    facts = json.loads(mpsctl(vault, "arena", "show", "late", "--json").stdout)
    assert (facts["ttl_seconds"], facts["used_bytes"]) == (3600.0, 8 << 20), "with what the program has allocated"
    [found] = run(vault, "look", "late")
    assert (found["step"], found["text"]) == (7, "seven")
    assert list(json.loads(found["layout"])["tensors"]) == ["embed", "layers.0", "layers.1"]


def test_an_arena_whose_user_is_killed_before_it_is_complete_expires(vault: Machine, tensors: Path) -> None:
    """Until then it lacks a layout, so that other processes do not take it for complete."""
    run(vault, "die_in_use", str(tensors), status=-signal.SIGKILL)
    found = json.loads(mpsctl(vault, "arena", "show", "halfway", "--json").stdout)
    assert (found["ttl_seconds"], found["layout_hash"]) == (60.0, "")


@pytest.mark.slow
def test_a_service_goes_on_from_its_newest_image_if_its_arena_is_gone(vault: Machine, tmp_path: Path) -> None:
    """Each image is of one step, whatever the service wrote before and after; one that failed has cost nothing but itself."""
    [found, ended] = run(vault, "serve_on", str(tmp_path), "2", "0")
    assert (found["found"], found["generation"]) == (0, 1)
    with Images.open(tmp_path) as images:
        newest = images.newest("on")
        assert newest.name == ended["last"]
    assert mpsctl(vault, "arena", "remove", "on").returncode == 0
    [again, ended] = run(vault, "serve_on", str(tmp_path), "1", "0")
    assert again == {"found": step_of(newest), "is_of_that_step": True, "generation": 2}
    vault.variables["MPSD_IMAGER"] = "/nonexistent"
    try:
        [kept, failed] = run(vault, "serve_on", str(tmp_path), "0", "2")
        assert kept["found"] == ended["step"], "the arena was there, and is newer than the image"
        assert failed["trouble"].startswith("the imager could not be started: ")
    finally:
        del vault.variables["MPSD_IMAGER"]


def test_a_schedule_ends_while_its_imager_starts(vault: Machine, tmp_path: Path) -> None:
    """And leaves no imager, of which Python would warn."""
    [said] = run(vault, "end_early", str(tmp_path))
    assert said == {"is_over": True, "taken": 0, "failed": 0}


def test_an_arena_of_a_killed_restorer_is_restored_again(vault: Machine, taken: Taken) -> None:
    """One that was never committed, and that no process has.  One that a process has is left alone."""
    directory, expected = taken
    mpsctl(vault, "arena", "remove", "kept")  # if another test has left it
    [said] = run(vault, "restore_missing", str(directory))
    assert said == {"commits": [0, 1, 1], "is_same": [True, False, False]}
    [found] = run(vault, "look", "kept")
    assert found["expected"] == expected


def test_a_damaged_image_leaves_no_arena(vault: Machine, taken: Taken, tmp_path: Path) -> None:
    shutil.copytree(taken[0], tmp_path / "images")
    with Images.open(tmp_path / "images") as images:
        place = images.find("kept").arenas[0].place(2)
    flip(tmp_path / f"images/packs/{place.pack}", place.slot * BLOCK_BYTES + 7)
    done = mpsctl(vault, "image", "restore", "kept", "--name", "damaged", "--directory", str(tmp_path / "images"))
    assert done.returncode == 1
    assert "image kept, arena kept, offset" in done.stderr
    assert "damaged" not in arenas(vault)


def test_what_is_left_of_a_damaged_image_can_be_restored(vault: Machine, taken: Taken, tmp_path: Path) -> None:
    """The damaged block is zeros, and the command says where."""
    shutil.copytree(taken[0], tmp_path / "images")
    with Images.open(tmp_path / "images") as images:
        arena = images.find("kept").arenas[0]
    place, offset = arena.place(1), arena.facts.allocations[0][0] + BLOCK_BYTES
    flip(tmp_path / f"images/packs/{place.pack}", place.slot * BLOCK_BYTES + 7)
    words = ("image", "restore", "kept", "--name", "partly", "--partial", "--directory", str(tmp_path / "images"))
    done = mpsctl(vault, *words)
    assert (done.returncode, done.stdout.strip().endswith(f"zeros, since they were lost: 2M at {offset:#x}")) == (1, True), done
    [found] = run(vault, "look", "partly")
    zeros = hashlib.sha256(bytes(BLOCK_BYTES)).hexdigest()
    assert found["expected"] == taken[1] | {str(offset): zeros}
    whole = mpsctl(vault, "image", "restore", "kept", "--name", "all", "--partial", "--directory", str(taken[0]))
    assert (whole.returncode, whole.stdout.strip().endswith("zeros, since they were lost: none")) == (0, True), whole


def test_a_newer_image_is_found_under_any_name(
    vault: Machine, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under the name of the one before; without one, what has come is complete."""
    directory = tmp_path / "images"
    shutil.copytree(taken[0], directory)
    for each in vault.variables.items():
        monkeypatch.setenv(*each)  # for the imager
    with vault.mpsd() as mpsd, ImageSource("", "kept", directory, "") as source:  # the connection's end removes the arena
        arena = mpsd.ask(calls.arena_create(*source.wanted("renewed", ""), ttl_seconds=0.1))
        generation = mpsd.ask(calls.arena_open("renewed", "write")).generation
        source.put(mpsd, arena.id, generation, arena.gpu)
        source.fill(range(source.blocks))
        source.imager.answer("filled", 20.0)
        for name, changed in (("kept", 3), ("kept", 0), ("another", 1)):
            for _ in range(2):
                assert not source.renew()
            with Images.open(directory) as images:
                change(images, name, changed)
            assert list(source.renew() or ()) == [changed]
            source.fill([changed])
            source.imager.answer("filled", 20.0)


def change(images: Images, name: str, number: int) -> None:
    """Replace the newest image by one of this name with another block."""
    before = images.newest("kept")
    [arena] = before.arenas
    with images.reader(before.name) as reader:
        blocks = [bytearray(BLOCK_BYTES) for _ in block_offsets(arena.facts)]
        for offset, block in zip(block_offsets(arena.facts), blocks, strict=True):
            reader.read_into(0, offset, block)
    images.remove(before.name)
    blocks[number][0] ^= 1
    with images.begin(name) as writer:
        for offset, block in zip(block_offsets(arena.facts), blocks, strict=True):
            writer.add("kept", offset, block)
        writer.finish(before.instant + 1.0, [arena.facts])
