"""Fixtures of the C client's tests: a machine with mpsd, and processes that have a session with it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.machine import Machine
from tests.native.c_client_drive import MIB, Drive, build

CAPACITY = 64 * MIB

Begin = Callable[..., Drive]


@pytest.fixture(name="drive_program", scope="session")
def built_drive() -> Path:
    return build("drive")


@pytest.fixture(name="machine")
def machine_of_all(vault_machine: Machine) -> Machine:
    return vault_machine


@pytest.fixture(name="begin")
def begin_sessions(drive_program: Path) -> Iterator[Begin]:
    """A process with a session: with the machine's mpsd, or by way of a relay."""
    made: list[Drive] = []

    def begin(machine: Machine, path: Path | None = None) -> Drive:
        drive = Drive(drive_program, machine.variables)
        made.append(drive)
        drive.do(f"session {path or machine.pipe / 'mpsd.sock'}")
        return drive

    yield begin
    for drive in made:
        drive.clear()


@pytest.fixture(name="name")
def name_of_the_test(request: pytest.FixtureRequest) -> str:
    """Return the name of the test's arena."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:100]


def opened(drive: Drive, name: str) -> Drive:
    drive.do(f"create {name} {CAPACITY}")
    drive.do(f"open {name} write 0")
    return drive
