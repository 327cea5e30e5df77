"""The examples that use PyTorch are services: killed and handed over in the simulator, they end as if nothing had been."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import MpsdError, calls

from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deadline(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed here"),
]
EXAMPLES = {
    "diffusion": ["--layers", "2", "--width", "128", "--size", "16", "--steps", "12", "--seed", "3", "--report-every", "1"],
    "train_resnet": ["--steps", "8", "--batch", "2", "--size", "32", "--seed", "3"],
}
CUT_AT = 3  # as torch_member.py has it
SECONDS = 120.0  # ResNet-50 on a part of a processor


class Member:
    """A process of it; its events."""

    def __init__(self, machine: Machine, name: str, *words: str) -> None:
        self.report = machine.place / f"{len(list(machine.place.glob('*.jsonl')))}.jsonl"
        self.report.touch()
        paths = [str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, str(Path(__file__).with_name("torch_member.py")), name, "--service", name, *EXAMPLES[name]]
        self.process = subprocess.Popen(
            [*command, "--report", str(self.report), *words],
            env=machine.variables | {"PYTHONPATH": os.pathsep.join(paths)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.report.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait(self, name: str, count: int = 1) -> dict[str, Any]:
        def look() -> bool:
            return len(self.events(name)) >= count or self.process.poll() is not None

        wait_for(f"{name} of {self.process.pid}", look, SECONDS)
        assert len(self.events(name)) >= count, f"{name} did not come: {self.process.communicate()[1][-2000:]}"
        return self.events(name)[count - 1]

    def end(self) -> int:
        print(self.process.communicate(timeout=SECONDS)[1])
        return self.process.returncode


@pytest.fixture(scope="module")
def machine(programs: None) -> Iterator[Machine]:
    with open_machine() as made:
        made.configure("[services]\nmost_promotions = 100\n")
        made.start()
        yield made


def wait_until_ready(machine: Machine, name: str, member: Member) -> None:
    def look() -> bool:
        with machine.mpsd() as mpsd:
            try:
                members = mpsd.ask(calls.service_get(name)).members
            except MpsdError:
                return False
        return any(each.pid == member.process.pid and each.standing == "ready" for each in members)

    wait_for(f"{member.process.pid} to be ready", look, SECONDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_killed_and_a_handed_over_one_end_as_an_undisturbed_one(name: str, machine: Machine, tmp_path: Path) -> None:
    words = ("--out", str(tmp_path / "image.png")) if name == "diffusion" else ()
    first = Member(machine, name, *words)
    assert first.wait("promoted")["record"] is False
    second, third = Member(machine, name, *words), Member(machine, name, *words)
    wait_until_ready(machine, name, second)
    wait_until_ready(machine, name, third)
    wait_for("the step that is cut off", Path(f"{first.report}.cut").exists, SECONDS)
    first.process.send_signal(signal.SIGKILL)
    wait_for("somebody to go on", lambda: second.events("first_step") or third.events("first_step"), SECONDS)
    serves, waits = (second, third) if second.events("first_step") else (third, second)
    assert serves.events("first_step")[0]["step"] == CUT_AT
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.service_handover(name)).to_pid == waits.process.pid
    serves.wait("yielded")
    assert waits.wait("first_step")["step"] == CUT_AT + 2
    undisturbed = Member(machine, name, *words, "--memory", "plain", "--device", "cpu")
    wanted = undisturbed.wait("end")
    assert [{**each.wait("end"), "pid": 0, "monotonic_ns": 0} for each in (waits, serves)] == 2 * [
        {**wanted, "pid": 0, "monotonic_ns": 0}
    ]
    assert [each.end() for each in (first, waits, serves, undisturbed)] == [-signal.SIGKILL, 0, 0, 0]
