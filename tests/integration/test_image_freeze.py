"""Images of a program that knows nothing of mpsd, under the shim: it is stopped for a moment, and goes on whatever happens."""

import importlib.util
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.store import Images
from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

PROGRAM, SHIM = Path(__file__).with_name("unaware_program.py"), ROOT / "clients/shim/libmpsd.so"
BLOCKS = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deadline(90),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-bindings and NumPy (pip install '.[images]')"),
]


class Unaware:
    """The running program."""

    def __init__(self, machine: Machine) -> None:
        self._output = machine.place / "steps"
        shim = {"LD_PRELOAD": str(SHIM), "MPSD_ARENA": "unaware", "MPSD_ARENA_CAPACITY": "64M"}
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(BLOCKS)], env=machine.variables | shim, stdout=file, stderr=file
            )
        wait_for("its first step", lambda: self.step)

    @property
    def step(self) -> int:
        lines = self._output.read_text().split("\n")
        return int(lines[-2]) if len(lines) > 1 else 0

    @property
    def is_stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def goes_on(self) -> None:
        before = self.step
        wait_for("another step", lambda: self.step > before)


@pytest.fixture
def machine(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        made.start()
        yield made


@pytest.fixture
def unaware(machine: Machine) -> Iterator[Unaware]:
    program = Unaware(machine)
    yield program
    program.process.kill()
    program.process.wait()


def take(machine: Machine, directory: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "mpsctl", "image", "take", "unaware", "--directory", str(directory), *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=machine.variables, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def words_of(directory: Path, name: str) -> "array[int]":
    """The memory of an image, in the order of its addresses."""
    found, into = array("I"), bytearray(BLOCK_BYTES)
    with Images.open(directory) as images, images.reader(name) as image:
        for offset, size in image.manifest.arenas[0].facts.allocations:
            for at in range(offset, offset + size, BLOCK_BYTES):
                image.read_into(0, at, into)
                found.frombytes(into)
    return found


def test_an_image_of_a_stopped_program_is_of_one_moment(machine: Machine, unaware: Unaware, tmp_path: Path) -> None:
    """It writes its memory in the order of addresses: what is behind the last written word has the step before."""
    for name in ("first", "second"):
        before = unaware.step
        with take(machine, tmp_path, "--name", name, "--freeze", "100ms") as taking:
            said, trouble = taking.communicate(timeout=60)
        assert taking.returncode == 0, trouble
        assert said.startswith(f"image {name} of unaware: 8M, ")
        assert "its writer stood still for 0." in said
        words = words_of(tmp_path, name)
        assert len(words) == BLOCKS * BLOCK_BYTES // 4
        assert words[0] > before
        changes = [at for at in range(0, len(words), 1024) if at and words[at] != words[at - 1024]]
        assert len(changes) <= 1
        assert words[0] - words[-1] == len(changes)
        unaware.goes_on()


def test_a_program_goes_on_if_mpsctl_is_killed(machine: Machine, unaware: Unaware, tmp_path: Path) -> None:
    with take(machine, tmp_path, "--freeze", "60s") as taking:
        wait_for("the program to stand", lambda: unaware.is_stopped)
        taking.kill()
    unaware.goes_on()
    with Images.open(tmp_path) as images:
        assert not images.directory.names()


def test_a_program_goes_on_if_another_client_faults(machine: Machine, unaware: Unaware, tmp_path: Path) -> None:
    """While it stands, its server could not end the culprit."""
    with take(machine, tmp_path, "--freeze", "60s") as taking:
        wait_for("the program to stand", lambda: unaware.is_stopped)
        culprit = machine.client("faulter", "oob_write", "--linger", "1").ready()
        _, trouble = taking.communicate(timeout=60)
    assert taking.returncode == 1
    assert "while the writers stood still: they go on" in trouble
    assert culprit.wait("result")
    wait_for("the program's own error", lambda: unaware.process.poll() is not None or not unaware.is_stopped)


def test_a_fault_in_another_domain_ends_no_image(machine: Machine, unaware: Unaware, tmp_path: Path) -> None:
    token = "another-domain-1"
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("apart", Selector.of_token(token), sm_percent=5, domain="own"))
    faults = len(machine.journal("fault.xid"))
    with take(machine, tmp_path, "--name", "kept", "--freeze", "10s") as taking:
        wait_for("the program to stand", lambda: unaware.is_stopped)
        culprit = machine.client("faulter", "oob_write", "--linger", "1", MPSD_LEASE=token).ready()
        wait_for("the fault", lambda: len(machine.journal("fault.xid")) > faults)
        assert unaware.is_stopped
        _, trouble = taking.communicate(timeout=60)
    assert taking.returncode == 0, trouble
    assert culprit.wait("result")
    unaware.goes_on()


def test_what_cannot_be_stopped_is_refused(machine: Machine, unaware: Unaware, tmp_path: Path) -> None:
    os.kill(unaware.process.pid, signal.SIGSTOP)
    wait_for("the program to stand", lambda: unaware.is_stopped)
    with take(machine, tmp_path, "--freeze", "1s") as taking:
        _, trouble = taking.communicate(timeout=60)
    assert (taking.returncode, "is stopped already" in trouble) == (1, True), trouble
    assert unaware.is_stopped, "another program has stopped it"
    unaware.process.kill()
    unaware.process.wait()
    with take(machine, tmp_path, "--freeze", "1s") as taking:
        _, trouble = taking.communicate(timeout=60)
    assert (taking.returncode, "no process writes arena unaware" in trouble) == (1, True), trouble
