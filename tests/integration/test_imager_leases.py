"""An imager beside a program under a lease: real processes, the real daemon, the simulated driver."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from mpsd.images.store import Images
from tests.integration.machine import Machine, open_machine
from tests.integration.test_images import digests, pytestmark, run, vault

__all__ = ["vault"]
pytestmark = [*pytestmark, pytest.mark.root]
TOKEN = "a token of one process alone"


@pytest.fixture
def token(vault: Machine) -> str:
    """Return the token of a lease for one process, as a starter makes it for each member."""
    with vault.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("one", Selector.of_token(TOKEN), gpus=["0"], sm_percent=30, processes=1))
    return TOKEN


def test_an_imager_does_not_wait_for_the_place_of_the_program_that_started_it(
    vault: Machine, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has the lease's only place for as long as it lives: its images would never begin."""
    monkeypatch.setitem(vault.variables, "MPSD_LEASE", token)
    [said] = run(vault, "keep", str(tmp_path), seconds=30)
    with Images.open(tmp_path) as images:
        assert digests(images, images.find("kept")) == said["expected"]


@pytest.mark.slow
def test_an_imager_takes_a_place_of_its_programs_lease_where_one_is_free(
    programs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no client may run without a lease, it has no other."""
    with open_machine() as machine:
        machine.configure('[admission]\ndefault = "refuse"\n')
        machine.start(MPSD_SIM_GPUS="2")
        with machine.mpsd() as mpsd:
            mpsd.ask(calls.lease_create("two", Selector.of_token(TOKEN), gpus=["0"], sm_percent=30, processes=2))
        monkeypatch.setitem(machine.variables, "MPSD_LEASE", TOKEN)
        [said] = run(machine, "keep", str(tmp_path), seconds=30)
        with Images.open(tmp_path) as images:
            assert digests(images, images.find("kept")) == said["expected"]


def test_an_imager_that_has_no_place_beside_its_program_is_reported(programs: None, tmp_path: Path) -> None:
    """It waits for the place that the program has, by its uid or its cgroup: the program never had an image, without a word."""
    with open_machine() as machine:
        machine.start(MPSD_SIM_GPUS="2")
        with machine.mpsd() as mpsd:
            mpsd.ask(calls.lease_create("one", Selector.of_uid(0), gpus=["0"], sm_percent=30, processes=1))
        command = [sys.executable, str(Path(__file__).with_name("schedule_program.py")), str(tmp_path)]
        done = subprocess.run(command, env=machine.variables, capture_output=True, text=True, timeout=30, check=True)
        said = json.loads(done.stdout)
        assert "may wait for a place at MPS" in said["trouble"]
        assert (said["failed"], said["taken"]) == (0, 0)
