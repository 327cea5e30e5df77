"""The examples that use PyTorch are services: killed and handed over in the simulator, they end as if nothing had been."""

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.example_member import start_member, wait_until_ready
from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deadline(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed here"),
]
MEMBER = Path(__file__).with_name("torch_member.py")
EXAMPLES = {
    "diffusion": ["--layers", "2", "--width", "128", "--size", "16", "--steps", "12", "--seed", "3", "--report-every", "1"],
    "train_resnet": ["--steps", "8", "--batch", "2", "--size", "32", "--seed", "3"],
}
CUT_AT = 3  # as torch_member.py has it
SECONDS = 120.0  # ResNet-50 on a part of a processor


def member(machine: Machine, name: str, *words: str) -> Client:
    return start_member(machine, MEMBER, name, "--service", name, *EXAMPLES[name], *words)


@pytest.fixture(scope="module")
def machine(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        made.configure("[services]\nmost_promotions = 100\n")
        made.start()
        yield made


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_killed_and_a_handed_over_one_end_as_an_undisturbed_one(name: str, machine: Machine, tmp_path: Path) -> None:
    words = ("--out", str(tmp_path / "image.png")) if name == "diffusion" else ()
    first = member(machine, name, *words)
    assert first.wait("promoted", SECONDS)["record"] is False
    second, third = member(machine, name, *words), member(machine, name, *words)
    wait_until_ready(machine, name, second, SECONDS)
    wait_until_ready(machine, name, third, SECONDS)
    wait_for("the step that is cut off", Path(f"{first.output}.cut").exists, SECONDS)
    first.end(signal.SIGKILL)
    wait_for("somebody to go on", lambda: second.events("first_step") or third.events("first_step"), SECONDS)
    serves, waits = (second, third) if second.events("first_step") else (third, second)
    assert serves.events("first_step")[0]["step"] == CUT_AT
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.service_handover(name)).to_pid == waits.pid
    serves.wait("yielded", SECONDS)
    assert waits.wait("first_step", SECONDS)["step"] == CUT_AT + 2
    undisturbed = member(machine, name, *words, "--memory", "plain", "--device", "cpu")
    wanted = undisturbed.wait("end", SECONDS)
    assert [{**each.wait("end", SECONDS), "pid": 0, "monotonic_ns": 0} for each in (waits, serves)] == 2 * [
        {**wanted, "pid": 0, "monotonic_ns": 0}
    ]
    assert [each.status(SECONDS) for each in (first, waits, serves, undisturbed)] == [-signal.SIGKILL, 0, 0, 0]
