"""The LLM service of the examples, as the sections use it: its front end, its members, and clients that ask.

On the simulator its members have the toy engine, and mpsd's own Python; else PyTorch's.
"""

import json
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.gpu.comparison import failover, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.pytorch import python_path
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

PLACE = ROOT / "clients/python/examples/llm"
LOAD_SECONDS = 60.0
NOWHERE = "/nonexistent"  # as MPS's directory: CUDA goes on without MPS
TOY_PACE = "0.004"


@dataclass(slots=True)
class Llm:
    """Guards one front end with its socket, and the sizes that all of its members have."""

    stage: Stage
    system: System
    service: str
    shape: str = "0.5B"
    slots: int = 16
    front: Client = field(init=False)
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.front = self._python("front.py", "--listen", "127.0.0.1:0", "--backend", self.backend)
        self.url = self._url()

    @property
    def backend(self) -> str:
        return str(self.stage.work / f"{self.service}.sock")

    def member(self, *words: str, has_input: bool = False, environment: Mapping[str, str] | None = None) -> Client:
        """Start a member that serves or stands by; it faults on request."""
        sizes = ("--slots", str(self.slots), "--length", "1024", "--report-every", "10")
        argv = [str(failover.FAULTING), str(PLACE / "member.py"), "--service", self.service, "--backend", self.backend]
        env = {**self.system.environment(), **(environment or {})}
        if self.stage.options.is_simulated:
            python, env["PYTHONPATH"] = self.stage.options.python, str(ROOT / "clients/python")
            argv += ["--engine", "toy", "--pace", TOY_PACE]
        else:
            assert self.stage.options.torch_python is not None
            python, env["PYTHONPATH"] = self.stage.options.torch_python, python_path(self.stage)
            argv += ["--shape", self.shape]
            env["MPSD_IMAGER"] = str(self.stage.options.python.parent / "mpsd-imager")
        return self.system.spawn([str(python), *argv, *sizes, *words], env, has_input)

    def load(self, name: str, *, requests: int, tokens: int) -> "Load":
        """Everybody asks at once."""
        out = self.stage.work / f"{name}.json"
        out.unlink(missing_ok=True)
        words = ("--clients", str(requests), "--requests", str(requests), "--tokens", str(tokens), "--json", str(out))
        return Load(self, self._python("load.py", "--url", self.url, *words), out)

    def counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.url}/stats", timeout=vault.EVENT_SECONDS) as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def end(self) -> None:
        end_all([self.front])

    def _url(self) -> str:
        found = self.front.wait_for_line("http://", vault.EVENT_SECONDS)
        if found is None:
            raise SystemFailed(f"the front end did not start: {self.front.trouble}"[:300])
        return found

    def _python(self, program: str, *words: str) -> Client:
        env = {**self.system.environment(), "PYTHONPATH": str(ROOT / "clients/python")}
        return self.system.spawn([str(self.stage.options.python), str(PLACE / program), *words], env)


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that have asked."""

    llm: Llm
    client: Client
    out: os.PathLike[str]

    def end(self) -> None:
        """Stop the front end, whatever it has received so far."""
        end_all([self.client])

    def result(self) -> dict[str, Any]:
        """When all have got all.  Raises SystemFailed where it does not end."""
        if self.client.wait(LOAD_SECONDS) is None:
            self.end()
            raise SystemFailed(f"the load does not end: {self.llm.counts()}")
        self.llm.system.clients.remove(self.client)
        try:
            with open(self.out) as said:
                found: dict[str, Any] = json.load(said)
        except OSError:
            raise SystemFailed(f"the load failed: {self.client.trouble}"[:300]) from None
        return found
