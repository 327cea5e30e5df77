"""A test client as a process: its lines of JSON, with deadlines.  Standard library only."""

import json
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any


class Gated:
    """A running client; it faults, or goes on, once its gate is open."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        self.events: list[dict[str, Any]] = []
        self.was_killed = False
        self._rest = b""

    @property
    def status(self) -> int | None:
        return self.process.returncode

    def open_gate(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def wait_for(self, name: str, seconds: float) -> dict[str, Any] | None:
        """The event of this name; None when it ends first, or after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            for event in self.events:
                if event["event"] == name:
                    return event
            if not self._read(until):
                return None

    def _read(self, until: float) -> bool:
        assert self.process.stdout
        left = until - time.monotonic()
        if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
            return False
        data = self.process.stdout.read1(65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.events.extend(json.loads(line) for line in lines if line.startswith(b"{"))
        return bool(data)

    def end(self, seconds: float) -> dict[str, Any]:
        """Its last event; one that has not ended by then is killed."""
        until = time.monotonic() + seconds
        while self._read(until):
            pass
        try:
            self.process.wait(max(0.01, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.was_killed = True
            self.kill()
        return self.events[-1] if self.events else {}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
