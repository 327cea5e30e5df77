"""A CUDA client under test and its reports."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.integration.process import EVENT_SECONDS, wait_for


class Client:
    """A CUDA program of tests/clients that reports what happens to it in JSON."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.output = output

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.output.read_text().splitlines(keepends=True)
        said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [event for event in said if event["event"] == name]

    def wait(self, name: str, seconds: float = EVENT_SECONDS, count: int = 1) -> dict[str, Any]:
        """The so-manieth event of that name, when it has come."""

        def said() -> list[dict[str, Any]] | bool:
            has_ended = self.has_ended()  # read the end first: the program reports before it ends
            found = self.events(name)
            return found if len(found) >= count else has_ended

        found = wait_for(f"'{name}' of pid {self.pid}", said, seconds)
        assert isinstance(found, list), f"no '{name}', ended with {self.process.poll()}: {self.output.read_text()}"
        return dict(found[count - 1])

    def ready(self, seconds: float = EVENT_SECONDS) -> "Client":
        """When its first kernel has run."""
        self.wait("ready", seconds)
        return self

    def error(self, seconds: float = EVENT_SECONDS) -> int:
        """The CUDA error that ended it."""
        return int(self.wait("error", seconds)["code"])

    def goes_on(self, seconds: float = EVENT_SECONDS) -> None:
        """A counter: counts once more from now on."""
        before = len(self.events("tick"))
        wait_for(f"pid {self.pid} to count on", lambda: len(self.events("tick")) > before + 1 or self.has_ended(), seconds)
        assert self.process.poll() is None, f"it ended: {self.output.read_text()}"

    def is_silent(self) -> bool:
        """It has neither begun nor failed."""
        return self.process.poll() is None and not self.events("ready")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit status, after a signal."""
        self.process.send_signal(number)
        return self.process.wait(EVENT_SECONDS)

    def status(self, seconds: float = EVENT_SECONDS) -> int:
        """Its exit status, when it ends by itself."""
        return self.process.wait(seconds)

    def has_ended(self) -> bool:
        return self.process.poll() is not None
