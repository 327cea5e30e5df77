"""Images of arenas: real processes, the real daemon, the simulated driver, a store on the disk."""

import fcntl
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import StateReader

from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts, Manifest
from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for

PROGRAM = Path(__file__).with_name("image_program.py")
TAKEN = 3

pytestmark = [
    pytest.mark.deadline(90),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-bindings and NumPy (pip install '.[images]')"),
]


@pytest.fixture(scope="module")
def vault(programs: None) -> Iterator[Machine]:
    with open_machine() as machine:
        machine.start(MPSD_SIM_GPUS="2")
        yield machine


def run(machine: Machine, verb: str, *words: str, status: int = 0, seconds: float = 80) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "default::ResourceWarning", str(PROGRAM), verb, *words]
    done = subprocess.run(command, env=machine.variables, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == status, done.stderr
    assert "is still running" not in done.stderr, "an imager is left to the garbage collector"
    return [json.loads(line) for line in done.stdout.splitlines()]


def mpsctl(machine: Machine, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mpsctl", *words]
    return subprocess.run(command, env=machine.variables | variables, capture_output=True, text=True, timeout=80, check=False)


def digests(images: Images, manifest: Manifest, arena: int = 0) -> dict[str, str]:
    """Return the hash of each block of an arena of the image, by its offset."""
    found, into = {}, bytearray(BLOCK_BYTES)
    with images.reader(manifest.name) as image:
        for offset, size in manifest.arenas[arena].facts.allocations:
            for at in range(offset, offset + size, BLOCK_BYTES):
                image.read_into(arena, at, into)
                found[str(at)] = hashlib.sha256(into).hexdigest()
    return found


def test_each_image_is_the_arena_at_its_barrier(vault: Machine, tmp_path: Path) -> None:
    """Whatever the client wrote, allocated, freed and committed while it was copied, and after."""
    said = run(vault, "many", str(tmp_path), str(TAKEN))
    with Images.open(tmp_path) as images:
        for number, each in enumerate(said):
            manifest = images.find(each["name"])
            assert digests(images, manifest) == each["expected"]
            facts = manifest.arenas[0].facts
            assert facts.layout == b"later layout %d" % number
            assert facts.state
            assert (each["bytes"], each["direct"]) == (facts.content_bytes, 0)
            assert facts.commit == 2 * number + 2
            assert each["copied"] == each["to_copy"] >= facts.content_bytes, "the blocks that changed meanwhile count again"
    assert len(said) == TAKEN
    assert all(each["beside"] for each in said), "the client did not write while it was copied"


@pytest.mark.slow
def test_an_image_of_a_group_is_of_one_moment_of_all_its_arenas(vault: Machine, tmp_path: Path) -> None:
    refused, *said = run(vault, "group", str(tmp_path), "1")
    assert all(words.startswith("ValueError: an image of several arenas has a group") for words in refused.values())
    with Images.open(tmp_path) as images:
        for number, each in enumerate(said):
            manifest = images.find(f"both.{number}")
            assert (manifest.group, manifest.content_bytes) == ("both", each["bytes"])
            arenas = {found.facts.name: (at, found.facts) for at, found in enumerate(manifest.arenas)}
            assert {name: digests(images, manifest, at) for name, (at, _) in arenas.items()} == each["expected"]
            assert [facts.layout for _, facts in arenas.values()] == [b"left", b"right %d" % number]
            assert arenas["left"][1].gpu != arenas["right"][1].gpu
        assert images.find("alone").group == ""
        assert images.newest("right").name == "both.1"
    take = ("image", "take", "left", "right", "--directory", str(tmp_path), "--name", "idle")
    done = mpsctl(vault, *take)
    assert (done.returncode, "several and --group" in done.stderr) == (1, True)
    done = mpsctl(vault, *take, "--group", "both")
    assert done.stdout.startswith("image idle of both: 16M, "), done.stderr
    restored = mpsctl(vault, "image", "restore", "idle", "--arena", "right", "--name", "right-2", "--directory", str(tmp_path))
    assert restored.returncode == 0, restored.stderr
    with Images.open(tmp_path) as images:
        idle = images.find("idle")
        expected = digests(images, idle, 1)
        assert (idle.group, idle.arenas[1].facts.name) == ("both", "right")
    [found] = run(vault, "look", "right-2")
    assert found["expected"] == expected


def test_an_image_of_a_service_has_the_forward_state_of_its_step(vault: Machine, tmp_path: Path) -> None:
    """The active goes on, and publishes, as soon as the barrier has returned."""
    said = run(vault, "serve", str(tmp_path), str(TAKEN))
    with Images.open(tmp_path) as images:
        for each in said:
            manifest = images.find(each["name"])
            assert digests(images, manifest) == each["expected"]
            assert step_of(manifest) == each["step"]
    assert len(said) == TAKEN


def step_of(manifest: Manifest) -> int:
    """Read the last record of the image's forward state, as an adopter would."""
    descriptor = os.memfd_create("state", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, manifest.arenas[0].facts.state)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with StateReader.open(descriptor, generation=manifest.arenas[0].facts.state_generation) as reader:
            record = reader.read()
            assert record
            return int(record["step"])
    finally:
        os.close(descriptor)


def test_an_image_is_completed_without_the_client(vault: Machine, tmp_path: Path) -> None:
    """It was killed right after the barrier; its last requests were answered."""
    [said] = run(vault, "die_after_barrier", str(tmp_path), status=-signal.SIGKILL)
    with Images.open(tmp_path) as images:
        wait_for("the image", lambda: images.listing().images)
        assert digests(images, images.find("orphan")) == said["expected"]


def test_a_client_that_leaves_the_barrier_gets_no_image(vault: Machine, tmp_path: Path) -> None:
    """It may write while the imager still works: the image would be of no moment."""
    [said] = run(vault, "leave_the_barrier", str(tmp_path))
    assert said == {"barrier": "TimeoutError: the imager did not answer `staged` within 0.1 s", "status": 0}
    with Images.open(tmp_path) as images:
        assert not images.listing().images


def test_a_fault_of_the_domain_costs_no_complete_image(vault: Machine, tmp_path: Path) -> None:
    """The imager loses its context with its client, and says so; the arena can be imaged again afterwards."""
    command = [sys.executable, str(PROGRAM), "live_through_a_fault", str(tmp_path)]
    with subprocess.Popen(command, env=vault.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        said = json.loads(client.stdout.readline())
        vault.client("faulter", "oob_write").wait("result")
        out, _ = client.communicate("on\n", timeout=60)
    ends = "ImageError: cu", "ImageError: the imager has ended", "CudaError: cuCtxSynchronize failed"  # whoever notices first
    assert json.loads(out)["second"].startswith(ends)
    done = mpsctl(vault, "image", "take", "shaken", "--directory", str(tmp_path), "--name", "third")
    assert done.returncode == 0, done.stderr
    with Images.open(tmp_path) as images:
        assert {each.name for each in images.listing().images} == {"first", "third"}
        for name in ("first", "third"):
            assert digests(images, images.find(name)) == said["expected"]


@pytest.mark.parametrize("ending", ["leave", pytest.param("seal", marks=pytest.mark.slow)])
def test_an_operator_takes_an_image_of_an_arena_without_a_writer(vault: Machine, tmp_path: Path, ending: str) -> None:
    [filled] = run(vault, "fill", f"idle-{ending}", ending)
    done = mpsctl(vault, "image", "take", f"idle-{ending}", "--directory", str(tmp_path), "--name", "first", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    sizes = {"bytes": 6 << 20, "new_bytes": 6 << 20}
    facts = {"name": "first", "arena": f"idle-{ending}", "directory": str(tmp_path), "stopped_seconds": None}
    assert said == facts | sizes
    with Images.open(tmp_path) as images:
        manifest = images.find("first")
        assert digests(images, manifest) == filled["expected"]
        assert manifest.arenas[0].facts.layout == b"layout of idle-" + ending.encode()
    again = mpsctl(vault, "image", "take", f"idle-{ending}", "--directory", str(tmp_path), "--name", "second")
    assert again.stdout == f"image second of idle-{ending}: 6M, 0 of it new\n"
    twice = mpsctl(vault, "image", "take", f"idle-{ending}", "--directory", str(tmp_path), "--name", "second")
    assert (twice.returncode, twice.stderr) == (
        1,
        "mpsctl image take: an image has the name second already: choose another, or remove that one\n",
    )


def test_an_image_is_later_than_those_before_also_when_the_clock_was_set_back(vault: Machine, tmp_path: Path) -> None:
    run(vault, "fill", "clocked", "leave")
    with Images.open(tmp_path) as images:
        images.set_limits(Limits(keep=1))
        ahead = time.time() + 3600
        facts = ArenaFacts("clocked", "GPU-1", 0, 0, 0, ())
        with images.begin("ahead") as new:
            new.finish(ahead, [facts])
        done = mpsctl(vault, "image", "take", "clocked", "--directory", str(tmp_path), "--name", "fresh")
        assert done.returncode == 0, done.stderr
        wait_for("the limits to be applied", lambda: images.directory.names() != ["ahead", "fresh"])
        assert images.newest("clocked").name == "fresh"
        assert ahead < images.find("fresh").instant < ahead + 1


@pytest.mark.slow
def test_the_limits_of_the_directory_hold_for_every_image(vault: Machine, tmp_path: Path) -> None:
    run(vault, "fill", "limited", "leave")
    take = ("image", "take", "limited", "--directory", str(tmp_path), "--name")
    with Images.open(tmp_path) as images:
        images.set_limits(Limits(keep=1))
        for name in ("first", "second"):
            assert mpsctl(vault, *take, name).returncode == 0
        wait_for("the first one to go", lambda: images.directory.names() == ["second"])
        images.set_limits(Limits(quota_bytes=BLOCK_BYTES))
        images.remove("second")
        images.collect()
        refused = mpsctl(vault, *take, "third")
        assert (refused.returncode, "quota" in refused.stderr) == (1, True)
        assert images.directory.names() == os.listdir(images.directory.packs) == []
        assert (images.directory.failures().count, "quota" in images.directory.failures().why) == (1, True)


@pytest.mark.slow
def test_blocks_of_a_killed_imager_keep_no_later_image_from_its_room(vault: Machine, tmp_path: Path) -> None:
    """The first one that fails frees them: no image was ever complete, after which the limits are applied."""
    run(vault, "fill", "crowded", "leave")
    take = ("image", "take", "crowded", "--directory", str(tmp_path), "--name")
    with Images.open(tmp_path) as images:
        assert mpsctl(vault, *take, "whole").returncode == 0
        size = images.find("whole").content_bytes
        images.remove("whole")
        images.collect()
        images.set_limits(Limits(quota_bytes=size + BLOCK_BYTES))
        if (pid := os.fork()) == 0:
            killed = images.begin("killed")
            for number in range(3):
                killed.add("crowded", number * BLOCK_BYTES, bytes([number]) * BLOCK_BYTES)
            os._exit(0)
        os.waitpid(pid, 0)
        assert images.directory.stored_bytes() == 3 * BLOCK_BYTES
        refused = mpsctl(vault, *take, "refused")
        assert (refused.returncode, "quota" in refused.stderr) == (1, True)
        wait_for("the blocks to go", lambda: images.directory.stored_bytes() == 0)
        done = mpsctl(vault, *take, "next")
        assert done.returncode == 0, done.stderr


def test_an_arena_that_is_written_takes_its_images_itself(vault: Machine, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "fill", "busy", "stay"]
    with subprocess.Popen(command, env=vault.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        assert writer.stdout.readline()
        done = mpsctl(vault, "image", "take", "busy", "--directory", str(tmp_path))
        assert done.returncode == 1
        assert "(ARENA_BUSY)" in done.stderr
        writer.communicate()


def test_what_cannot_be_is_refused_in_words(vault: Machine, tmp_path: Path) -> None:
    [said] = run(vault, "refusals", str(tmp_path))
    beginnings = {
        "two barriers": "image same has had its barrier, or has failed",
        "same name": "an image has the name same already: choose another, or remove that one",
        "wait before the barrier": "image killed has not had its barrier, or has failed",
        "killed imager": "the imager has ended, with status -9: its standard error says why",
        "no program": "the imager could not be started: [Errno 2] No such file",
        "no directory": f"{tmp_path}/file: it is not a directory",
    }
    assert said.pop("after it") == "after"
    assert said.pop("below normal"), "its kernels would delay the client's"
    assert said.pop("another process after a failure"), "its context may be lost"
    assert said.keys() == beginnings.keys()
    assert not [what for what, words in beginnings.items() if not said[what].startswith(f"ImageError: {words}")]
