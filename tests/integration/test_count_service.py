"""The smallest example of a service, as its docstring describes: killed, handed over, and started again."""

import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.example_member import start_member, wait_until_ready
from tests.integration.machine import ROOT, Machine, open_machine

EXAMPLE = ROOT / "clients/python/examples/count_service.py"
FAULTING = ROOT / "tests/gpu/fault_on_signal.py"
STEPS = 400
SECONDS = 30.0
SLOWLY = ("--pace", "0.05")  # so that the other one is ready long before the end


def counter(machine: Machine, name: str, *words: str) -> Client:
    return start_member(machine, EXAMPLE, "--service", name, "--steps", str(STEPS), "--every", "2", "--check", *words)


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


def test_it_goes_on_when_it_is_killed(machine_of_services: Machine, digest: int) -> None:
    machine = machine_of_services
    first = counter(machine, "killed", *SLOWLY)
    assert first.wait("promoted", SECONDS)["record"] is False
    second = counter(machine, "killed", "--rank", "1")
    wait_until_ready(machine, "killed", second, SECONDS)
    reached = first.wait("step", SECONDS)["n"]
    first.end(signal.SIGKILL)
    promoted = second.wait("promoted", SECONDS)
    assert (promoted["record"], promoted["generation"]) == (True, 2)
    assert second.wait("first_step", SECONDS)["step"] > reached
    assert second.wait("end", SECONDS)["digest"] == digest
    assert second.status(SECONDS) == 0
    assert first.status(SECONDS) == -signal.SIGKILL


@pytest.mark.slow
def test_a_driver_that_clears_up_after_a_fault_is_not_waited_for(programs: None) -> None:
    """It would change no access for five seconds: that was changed before."""
    with open_machine() as machine:
        machine.start(MPSD_SIM_CLEARING_MS="5000")
        words = (str(EXAMPLE), "--service", "cleared", "--steps", str(STEPS), "--every", "2", *SLOWLY)
        first = start_member(machine, FAULTING, *words)
        first.wait("step", SECONDS)
        second = start_member(machine, FAULTING, *words)
        wait_until_ready(machine, "cleared", second, SECONDS)
        os.kill(first.pid, signal.SIGUSR2)
        fault, step = first.wait("fault", SECONDS), second.wait("first_step", SECONDS)
        assert step["monotonic_ns"] - fault["monotonic_ns"] < 2.5e9
        second.end(signal.SIGKILL)


@pytest.mark.slow
def test_it_is_handed_over_and_back(machine_of_services: Machine) -> None:
    machine = machine_of_services
    first = counter(machine, "handed", *SLOWLY)
    first.wait("step", SECONDS)
    second = counter(machine, "handed", *SLOWLY)
    wait_until_ready(machine, "handed", second, SECONDS)
    with machine.mpsd() as mpsd:
        handed = mpsd.ask(calls.service_handover("handed"))
        assert (handed.from_pid, handed.to_pid) == (first.pid, second.pid)
        second.wait("first_step", SECONDS)
        first.wait("yielded", SECONDS)
        wait_until_ready(machine, "handed", first, SECONDS)
        assert mpsd.ask(calls.service_handover("handed")).to_pid == first.pid
    second.wait("yielded", SECONDS)
    assert first.wait("first_step", SECONDS, 2)["step"] > second.wait("first_step", SECONDS)["step"]
    second.end(signal.SIGKILL)
    first.end(signal.SIGKILL)
    assert (first.status(SECONDS), second.status(SECONDS)) == (-signal.SIGKILL, -signal.SIGKILL)


@pytest.mark.slow
def test_a_term_outlives_mpsd(machine_of_services: Machine, digest: int) -> None:
    """The one that counts does not wait for it; the one that waits takes over from a later mpsd."""
    machine = machine_of_services
    first = counter(machine, "outlived", *SLOWLY)
    first.wait("step", SECONDS)
    second = counter(machine, "outlived")
    wait_until_ready(machine, "outlived", second, SECONDS)
    machine.kill_daemon()
    reached = len(first.events("step"))
    first.wait("step", SECONDS, reached + 2)
    machine.start()
    wait_until_ready(machine, "outlived", second, SECONDS)
    first.end(signal.SIGKILL)
    assert second.wait("promoted", SECONDS)["generation"] == 2
    assert second.wait("end", SECONDS)["digest"] == digest
    assert second.status(SECONDS) == 0
    assert first.status(SECONDS) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.root
def test_without_root_each_goes_where_it_is_told(strangers: Machine, digest: int) -> None:
    """By its environment, which enlisting changes; and mpsd is found in the directory that was meant before that."""
    strangers.start()
    first = counter(strangers, "humble", *SLOWLY)
    first.wait("step", SECONDS)
    second = counter(strangers, "humble")
    wait_until_ready(strangers, "humble", second, SECONDS)
    with strangers.mpsd() as mpsd:
        members = mpsd.ask(calls.service_get("humble")).members
    assert all(each.is_apart for each in members)
    first.end(signal.SIGKILL)
    assert second.wait("promoted", SECONDS)["generation"] == 2
    assert second.wait("end", SECONDS)["digest"] == digest
    assert (first.status(SECONDS), second.status(SECONDS)) == (-signal.SIGKILL, 0)
