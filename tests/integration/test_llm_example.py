"""The LLM example as a person starts it, with the engine that needs no PyTorch: members are killed, hurt by faults and handed
over while clients read, who notice nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from mpsd_client import MpsdError, calls, values

from tests.integration.client import Client
from tests.integration.machine import ROOT, Machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.root]
LLM = ROOT / "clients/python/examples/llm"
CONFIGURATION = """
[faults]
quarantine = "off"
crash_pause_max = 0.0
culprit = "leave"
[services]
most_promotions = 1000
"""
START_SECONDS = 60.0
REQUESTS, TOKENS = 16, 80
SERVICE = "llm"


class Server:
    """serve.py and its reports."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.record = machine, machine.place / "record"
        words = ["--engine", "toy", "--slots", "8", "--length", "200", "--page", "8", "--pace", "0.01"]
        command = [sys.executable, str(LLM / "serve.py"), "--listen", "127.0.0.1:0", "--record", str(self.record)]
        command += ["--log-dir", str(machine.place), *words]
        self.process = subprocess.Popen(command, env=machine.variables, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def stats(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/stats", timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def view(self) -> values.Service:
        with self.machine.mpsd() as mpsd:
            return mpsd.ask(calls.service_get(SERVICE))

    def wait_for_a_standby(self) -> values.Service:
        def look() -> values.Service | None:
            try:
                view = self.view()
            except MpsdError:  # not yet
                return None
            is_ready = [each for each in view.members if each.standing == "ready" and not each.is_writer]
            return view if view.phase == "serving" and is_ready else None

        return wait_for("a member that serves and one that stands by", look, START_SECONDS)

    def members_said(self, event: str) -> list[dict[str, Any]]:
        said = [line for log in self.machine.place.glob(f"{SERVICE}-*.log*") for line in log.read_text().splitlines()]
        found = [json.loads(line[line.index("{") :]) for line in said if '"event"' in line]
        return [each for each in found if each["event"] == event]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture
def server(machine: Machine) -> Iterator[Server]:
    machine.configure(CONFIGURATION)
    machine.start()
    made = Server(machine)
    yield made
    if made.process.poll() is None:
        made.end()


def expected() -> list[list[int]]:
    """What the requests of load.py are to be answered, by arithmetic."""
    program = (
        "import json, sys; from types import SimpleNamespace as N; from load import plan; from toy import continued\n"
        f"asked = plan(N(seed=586, requests={REQUESTS}, prompt=50, tokens={TOKENS}, temperature=1.0))\n"
        f"found = [continued(each.prompt, {TOKENS}, each.options['seed'], 1.0) for each in asked]\n"
        "json.dump(found, sys.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=LLM, capture_output=True, text=True, check=True)
    found: list[list[int]] = json.loads(done.stdout)
    return found


def kill(server: Server, view: values.Service) -> None:
    assert view.writer_pid is not None
    os.kill(view.writer_pid, signal.SIGKILL)


def hand_over(server: Server, view: values.Service) -> None:
    with server.machine.mpsd() as mpsd:
        mpsd.ask(calls.service_handover(SERVICE, wait_seconds=20.0))


def fault(server: Server, view: values.Service) -> None:
    """A stranger in the domain of the one that serves traps, which ends everybody's context there."""
    domain = next(each.domain for each in view.members if each.is_writer)
    pipe = server.machine.state / "domains" / domain / "pipe"
    stranger: Client = server.machine.client("faulter", "trap", CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    wait_for("the end of a stranger", stranger.has_ended, 20)


@pytest.mark.deadline(300)
def test_clients_notice_nothing_while_members_come_and_go(server: Server, tmp_path: Path) -> None:
    """Twice killed, once hurt by a fault, once handed over: no connection is dropped, and every token is the right one."""
    answers = expected()
    for disturb in (kill, fault, hand_over, kill):
        view, before = server.wait_for_a_standby(), server.stats()["tokens"]
        said = tmp_path / "load.json"
        words = ["--url", server.url, "--clients", "8", "--requests", str(REQUESTS), "--tokens", str(TOKENS)]
        words += ["--prompt", "50", "--temperature", "1.0", "--json", str(said)]
        load = subprocess.Popen([sys.executable, str(LLM / "load.py"), *words], stdout=subprocess.PIPE, text=True)
        wait_for("some tokens", lambda before=before: server.stats()["tokens"] >= before + 200, 30)
        assert load.poll() is None
        disturb(server, view)
        printed, _ = load.communicate(timeout=100)
        assert load.returncode == 0, printed
        assert [each["tokens"] for each in json.loads(said.read_text())["results"]] == answers
        assert server.view().generation == view.generation + 1
    stats = server.stats()
    assert stats["finished"] == 4 * REQUESTS
    assert (stats["differing"], stats["unfinished"], stats["open"]) == (0, 0, 0)
    assert not server.members_said("lost")
    terms = server.members_said("promoted")
    assert [each["record"] for each in sorted(terms, key=lambda each: each["generation"])] == [False, *[True] * 4]
    assert server.end() == 0
    assert len(server.record.read_text().splitlines()) == 4 * REQUESTS * TOKENS
