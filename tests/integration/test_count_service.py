"""The smallest service, as its first lines say: killed, handed over, and started again."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from mpsd_client import MpsdError, calls

from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

EXAMPLE = ROOT / "clients/python/examples/count_service.py"
STEPS = 400
SLOWLY = ("--pace", "0.05")  # so that the other one is ready long before the end


class Counter:
    """One process of it, and its events."""

    def __init__(self, machine: Machine, name: str, *words: str) -> None:
        self.report = machine.place / f"{name}-{len(list(machine.place.glob('*.jsonl')))}.jsonl"
        self.report.touch()
        if machine.uid is not None:
            os.chown(self.report, machine.uid, -1)
        command = [sys.executable, str(EXAMPLE), "--service", name, "--steps", str(STEPS), "--every", "2"]
        command += ["--check", "--report", str(self.report), *words]
        command[0] = machine.variables["MPSD_PYTHON"]
        variables = machine.variables | {"PYTHONPATH": str(ROOT / "clients/python")}
        self.process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True, **machine._user(None))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.report.read_text().splitlines(keepends=True)
        said = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in said if event["event"] == name]

    def wait(self, name: str, count: int = 1) -> dict[str, Any]:
        def look() -> list[dict[str, Any]] | bool:
            has_ended = self.process.poll() is not None
            found = self.events(name)
            return found if len(found) >= count else has_ended

        found = wait_for(f"{name} of {self.process.pid}", look, 30)
        assert isinstance(found, list), f"{name} did not come: {self.process.communicate()[1]}"
        return found[count - 1]

    def end(self) -> int:
        _, errors = self.process.communicate(timeout=30)
        print(errors)
        return self.process.returncode


@pytest.fixture(scope="module")
def machine_of_services(programs: None) -> Iterator[Machine]:
    with open_machine() as machine:
        machine.configure("[services]\nmost_promotions = 100\n")
        machine.start()
        yield machine


@pytest.fixture(scope="module")
def digest() -> int:
    """Of an undisturbed run."""
    spec = importlib.util.spec_from_file_location("count_service", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    value = module.SEED
    for _ in range(STEPS):
        value = module.next_of(value)
    return int(value)


def wait_until_ready(machine: Machine, name: str, pid: int) -> None:
    def look() -> bool:
        with machine.mpsd() as mpsd:
            try:
                members = mpsd.ask(calls.service_get(name)).members
            except MpsdError:
                return False
        return any(each.pid == pid and each.standing == "ready" for each in members)

    wait_for(f"{pid} to be ready", look, 30)


def test_it_goes_on_when_it_is_killed(machine_of_services: Machine, digest: int) -> None:
    machine = machine_of_services
    first = Counter(machine, "killed", *SLOWLY)
    assert first.wait("promoted")["record"] is False
    second = Counter(machine, "killed", "--rank", "1")
    wait_until_ready(machine, "killed", second.process.pid)
    reached = first.wait("step")["n"]
    first.process.send_signal(signal.SIGKILL)
    promoted = second.wait("promoted")
    assert (promoted["record"], promoted["generation"]) == (True, 2)
    assert second.wait("first_step")["step"] > reached
    assert second.wait("end")["digest"] == digest
    assert second.end() == 0
    assert first.end() == -signal.SIGKILL


@pytest.mark.slow
def test_it_is_handed_over_and_back(machine_of_services: Machine) -> None:
    machine = machine_of_services
    first = Counter(machine, "handed", *SLOWLY)
    first.wait("step")
    second = Counter(machine, "handed", *SLOWLY)
    wait_until_ready(machine, "handed", second.process.pid)
    with machine.mpsd() as mpsd:
        handed = mpsd.ask(calls.service_handover("handed"))
        assert (handed.from_pid, handed.to_pid) == (first.process.pid, second.process.pid)
        second.wait("first_step")
        first.wait("yielded")
        wait_until_ready(machine, "handed", first.process.pid)
        assert mpsd.ask(calls.service_handover("handed")).to_pid == first.process.pid
    second.wait("yielded")
    assert first.wait("first_step", 2)["step"] > second.wait("first_step")["step"]
    second.process.kill()
    first.process.kill()
    assert (first.end(), second.end()) == (-signal.SIGKILL, -signal.SIGKILL)


@pytest.mark.slow
def test_a_term_outlives_mpsd(machine_of_services: Machine, digest: int) -> None:
    """The one that counts does not wait for it; the one that waits takes over from a later mpsd."""
    machine = machine_of_services
    first = Counter(machine, "outlived", *SLOWLY)
    first.wait("step")
    second = Counter(machine, "outlived")
    wait_until_ready(machine, "outlived", second.process.pid)
    machine.kill_daemon()
    reached = len(first.events("step"))
    first.wait("step", reached + 2)
    machine.start()
    wait_until_ready(machine, "outlived", second.process.pid)
    first.process.send_signal(signal.SIGKILL)
    assert second.wait("promoted")["generation"] == 2
    assert second.wait("end")["digest"] == digest
    assert second.end() == 0
    assert first.end() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.root
def test_without_root_each_goes_where_it_is_told(strangers: Machine, digest: int) -> None:
    """By its environment, which enlisting changes; and mpsd is found in the directory that was meant before that."""
    strangers.start()
    first = Counter(strangers, "humble", *SLOWLY)
    first.wait("step")
    second = Counter(strangers, "humble")
    wait_until_ready(strangers, "humble", second.process.pid)
    with strangers.mpsd() as mpsd:
        members = mpsd.ask(calls.service_get("humble")).members
    assert all(each.is_apart for each in members)
    first.process.send_signal(signal.SIGKILL)
    assert second.wait("promoted")["generation"] == 2
    assert second.wait("end")["digest"] == digest
    assert (first.end(), second.end()) == (-signal.SIGKILL, 0)
