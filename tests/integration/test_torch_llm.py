"""The LLM example with its model in PyTorch, on the simulator: members die, and the streams equal undisturbed ones."""

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
from mpsd_client import MpsdError, calls, values

from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deadline(300),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed here"),
]
LLM = ROOT / "clients/python/examples/llm"
MEMBER = Path(__file__).with_name("llm_torch_member.py")
SERVICE = "llm"
MEMBERS, STREAMS, TOKENS = 3, 4, 120
SECONDS = 120.0


class Servers:
    """A front end and members.  Guards that they end with the test."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.processes = machine, list[subprocess.Popen[str]]()
        self.backend, self.events_of = machine.place / "members.sock", machine.place / "events"
        front = self.start(LLM / "front.py", "--listen", "127.0.0.1:0", "--backend", self.backend)
        assert front.stdout is not None
        self.url = front.stdout.readline().strip()
        for _ in range(MEMBERS):
            words = ("--service", SERVICE, "--backend", self.backend, "--shape", "tiny", "--slots", "4", "--length", "256")
            self.start(MEMBER, *words, "--report", self.events_of, "--report-every", "1")

    def start(self, program: Path, *words: object) -> "subprocess.Popen[str]":
        env = self.machine.variables | {"PYTHONPATH": f"{ROOT}/clients/python:{os.environ.get('PYTHONPATH', '')}"}
        argv = [sys.executable, str(program), *map(str, words)]
        self.processes.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        return self.processes[-1]

    def load(self, out: Path) -> "subprocess.Popen[str]":
        counts = ("--clients", STREAMS, "--requests", STREAMS, "--tokens", TOKENS, "--temperature", 0.8)
        return self.start(LLM / "load.py", "--url", self.url, *counts, "--json", out)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.events_of.read_text().splitlines(keepends=True) if self.events_of.exists() else []
        return [said for line in lines if line.endswith("\n") and (said := json.loads(line))["event"] == name]

    def wait_for_standbys(self, count: int) -> values.Service:
        def look() -> values.Service | None:
            with self.machine.mpsd() as mpsd:
                try:
                    view = mpsd.ask(calls.service_get(SERVICE))
                except MpsdError:
                    return None
            return view if sum(each.standing == "ready" and not each.is_writer for each in view.members) == count else None

        return wait_for(f"{count} standbys", look, SECONDS)

    def wait_for_steps(self, count: int) -> None:
        since = len(self.events("step"))
        wait_for(f"{count} steps", lambda: len(self.events("step")) >= since + count, SECONDS)

    def end(self) -> None:
        for each in reversed(self.processes):
            each.terminate()
        for each in self.processes:
            each.communicate(timeout=30)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with open_machine() as machine:
        machine.start()
        made = Servers(machine)
        yield made
        made.end()


def test_a_killed_and_a_handed_over_model_says_what_it_would_have_said(servers: Servers, tmp_path: Path) -> None:
    servers.wait_for_standbys(2)
    undisturbed = servers.load(tmp_path / "undisturbed.json")
    assert undisturbed.wait(SECONDS) == 0
    disturbed = servers.load(tmp_path / "disturbed.json")
    servers.wait_for_steps(20)
    writer = servers.wait_for_standbys(2).writer_pid
    assert writer is not None
    os.kill(writer, signal.SIGKILL)
    servers.wait_for_standbys(1)
    servers.wait_for_steps(20)
    with servers.machine.mpsd() as mpsd:
        mpsd.ask(calls.service_handover(SERVICE, wait_seconds=20.0))
    servers.wait_for_steps(20)
    assert disturbed.wait(SECONDS) == 0
    tokens = [[each["tokens"] for each in json.loads(path.read_text())["results"]] for path in sorted(tmp_path.iterdir())]
    assert tokens[0] == tokens[1]
    assert [len(each) for each in tokens[0]] == STREAMS * [TOKENS]
    assert [said["record"] for said in servers.events("promoted")] == [False, True, True]
    assert not servers.events("lost")
