"""The real daemon in a guest, with the simulated MPS: files in memory, and the patience that emulation takes."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest_run import SLOWDOWN

from tests.integration.machine import FRONT_END, SIMULATOR, Machine

START_SECONDS = 200.0 * SLOWDOWN  # of the daemon or a client: on a busy machine the emulation took over a minute
_LAST_LINES = 20


@contextmanager
def open_machine() -> Iterator[Machine]:
    """The guest's disk is the host's, and cannot be written."""
    if not (FRONT_END.exists() and (SIMULATOR / "lib/libcuda.so.1").exists()):
        pytest.skip("the simulator is not built: make build")
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)  # other users' programs connect
    for name in ("pipe", "log", "machine"):
        (place / name).mkdir()
    made = Machine(place)
    yield made
    made.clear()


def start(machine: Machine) -> None:
    """As the front end does it, which gives a daemon a minute to be ready."""
    argv = [sys.executable, "-m", "mpsd", "serve", "--background"]
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=machine.variables, cwd="/")
    machine.addition(child)
    try:
        machine.wait_for_journal("daemon.ready", START_SECONDS)
    except AssertionError as exc:
        raise AssertionError(f"{exc}; status {child.poll()}; {machine.log('mpsd.log')[-_LAST_LINES:]}") from None
