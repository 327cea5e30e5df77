"""Fixtures of the simulator's tests: the programs, built; a machine; a daemon on it."""

import functools
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.native.sim_machine import ROOT, SANITIZER, Machine, open_machine

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0 to be several users")


@pytest.fixture(name="sim_programs", scope="session", autouse=True)
@functools.cache  # each module that imports the fixture has its own
def built_programs() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "native", "sim", "SAN="], check=True)
    subprocess.run(["make", "-s", "-C", ROOT / "native", "sim", f"SAN={SANITIZER}"], check=True)
    subprocess.run(["make", "-s", "-j2", "-C", ROOT / "tests/clients", "CUDA=sim"], check=True)


@pytest.fixture(name="machine")
def bare_machine(sim_programs: None) -> Iterator[Machine]:
    """A machine with one GPU and no daemon."""
    with open_machine() as made:
        yield made


@pytest.fixture(name="mps")
def machine_with_daemon(machine: Machine) -> Machine:
    """A machine on which a control daemon runs."""
    machine.start()
    return machine
