"""The LLM example moves from GPU to GPU while clients read their tokens: the toy engine, the simulator with two GPUs."""

import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.integration.test_llm_example import LLM, REQUESTS, TOKENS, expected
from tests.integration.test_moves import moved
from tests.integration.test_moves import pytestmark as pytestmark
from tests.integration.test_replicas import SECONDS, is_replicated

WORDS = ["--engine", "toy", "--slots", "8", "--length", "200", "--page", "8", "--pace", "0.02"]


class Processes:
    """A front end, and a member on each GPU."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self.directory, self.backend = machine, directory, machine.place / "llm.sock"
        command = [sys.executable, str(LLM / "front.py"), "--listen", "127.0.0.1:0", "--backend", str(self.backend)]
        self.front = subprocess.Popen(command, env=machine.variables, stdout=subprocess.PIPE, text=True)
        assert self.front.stdout
        self.url = self.front.stdout.readline().strip()
        self.members: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, gpu: int) -> None:
        words = ["--backend", str(self.backend), "--images", str(self.directory), "--every", "0.3", *WORDS]
        variables = self.machine.variables | {"CUDA_VISIBLE_DEVICES": self.machine.uuids()[gpu]}
        with (self.machine.place / f"member-{gpu}.log").open("ab") as log:
            command = [sys.executable, str(LLM / "member.py"), *words]
            self.members[gpu] = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def stats(self) -> dict[str, int]:
        with urlopen(f"{self.url}/stats", timeout=20) as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def end(self) -> None:
        for process in (*self.members.values(), self.front):
            process.terminate()
        for process in (*self.members.values(), self.front):
            with process:
                process.wait(SECONDS)


@pytest.mark.slow
@pytest.mark.deadline(180)
def test_clients_notice_nothing_while_the_model_moves_there_and_back(machine: Machine, tmp_path: Path) -> None:
    """No connection is dropped, and every token is the one of an undisturbed run."""
    machine.start(MPSD_SIM_GPUS="2")
    directory = tmp_path / "images"
    with Images.open(directory) as images:
        images.set_limits(Limits(keep=3))
    processes = Processes(machine, directory)
    try:
        processes.start(0)
        wait_for("a member that serves", lambda: processes.stats()["member"], SECONDS)
        processes.start(1)
        said = tmp_path / "load.json"
        words = ["--url", processes.url, "--clients", "8", "--requests", str(REQUESTS), "--tokens", str(TOKENS)]
        words += ["--prompt", "50", "--temperature", "1.0", "--json", str(said)]
        for to, left in (("1", 0), ("0", 1)):
            since = time.time()
            wait_for("a replica", lambda since=since: is_replicated(machine, since), 2 * SECONDS)
            before = processes.stats()["tokens"]
            load = subprocess.Popen([sys.executable, str(LLM / "load.py"), *words], stdout=subprocess.PIPE, text=True)
            wait_for("some tokens", lambda before=before: processes.stats()["tokens"] >= before + 100, SECONDS)
            found = moved(machine, to)
            assert load.poll() is None, "the clients had their answers before the move"
            printed, _ = load.communicate(timeout=100)
            assert load.returncode == 0, printed
            assert [each["tokens"] for each in json.loads(said.read_text())["results"]] == expected()
            assert found["pause_ms"] > 0
            assert processes.members[left].wait(SECONDS) == 3, "mpsd has dismissed it"
            processes.start(left)
        assert processes.stats()["finished"] == 2 * REQUESTS
    finally:
        processes.end()
    assert not machine.bugs()
