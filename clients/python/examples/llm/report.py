"""The events of a member with their times, as JSON lines: {"event", "pid", "monotonic_ns", ...}.  For measurements."""

import json
import os
import time
from typing import Any


class Report:
    """Writes whole lines, even if the process is killed.  path: a file to append to; "-": standard output.  every: report
    each step with a multiple of this number; 0: none."""

    def __init__(self, path: str, every: int = 0) -> None:
        self._fd = 1 if path == "-" else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._every = every

    def say(self, event: str, **facts: Any) -> None:
        line = {"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}
        os.write(self._fd, (json.dumps(line) + "\n").encode())

    def step(self, number: int) -> None:
        if self._every and number % self._every == 0:
            self.say("step", n=number)
