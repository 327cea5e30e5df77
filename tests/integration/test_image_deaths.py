"""A process is killed while an image is completed: the image is whole or absent, and earlier ones stay."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.images.store import Images
from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_images import PROGRAM, digests, run
from tests.integration.test_images import pytestmark as everyday

pytestmark = [*everyday[1:], pytest.mark.slow, pytest.mark.deadline(300)]


def deadly_program(place: Path) -> Path:
    program = place / "imager"
    words = shlex.join([sys.executable, "-m", "tests.integration.deadly_imager"])
    program.write_text(f"#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {words}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def deadly(programs: None, tmp_path: Path) -> Iterator[Machine]:
    with open_machine() as machine:
        machine.start()
        machine.variables["MPSD_IMAGER"] = str(deadly_program(tmp_path))
        yield machine


def test_the_imager_is_killed_at_each_call_that_completes_an_image(deadly: Machine, tmp_path: Path) -> None:
    """Until it survives, as there is no such call any more."""
    deadly.variables["DEADLY_VICTIMS"] = "imager"
    said = run(deadly, "die_completing", str(tmp_path / "images"), seconds=250)
    died = [each for each in said if not each["is_complete"]]
    assert len(died) >= 8, "sync of the pack, lock, manifest, rename, and more"
    with Images.open(tmp_path / "images") as images:
        listing = images.listing()
        assert listing.damaged == {}
        names = {each.name for each in listing.images}
        assert names >= {each["name"] for each in said if each["is_complete"]}
        assert len(names) < len(said), "none was killed before its image was complete"
        for each in said:
            if each["name"] in names:
                assert digests(images, images.find(each["name"])) == each["expected"]
        assert list(images.verify()) == []


@pytest.mark.parametrize("call", ["write", "rename"])
@pytest.mark.parametrize("victim", ["client", "mpsd", "keeper"])
def test_the_death_of_another_at_the_manifest_costs_no_image(deadly: Machine, tmp_path: Path, victim: str, call: str) -> None:
    directory = str(tmp_path / "images")
    pids = {"client": "client", "mpsd": str(deadly.daemon_pid()), "keeper": str(deadly.keeper_pid())}
    with Images.open(tmp_path / "images") as images:
        deadly.variables |= {"DEADLY_CALL": "0", "DEADLY_VICTIMS": pids[victim]}
        command = [sys.executable, str(PROGRAM), "complete_two", directory, call]
        with subprocess.Popen(command, env=deadly.variables, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout
            expected = [line for line in map(str.strip, client.stdout) if line]
        assert client.returncode == (-signal.SIGKILL if victim == "client" else 0)
        assert len(expected) == 2
        for name, line in zip(("before", "during"), expected, strict=True):
            wait_for(f"image {name}", lambda name=name: name in images.directory.names())
            assert list(digests(images, images.find(name)).values()) == line.split()
        assert list(images.verify()) == []
    if victim != "client":
        wait_for("it to be killed", lambda: not is_running(int(pids[victim])))
