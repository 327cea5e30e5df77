"""A running test client: its events, line by line, and its end.

The clients of tests/clients print one JSON object a line; other lines are kept separately.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]
ERROR = "error"
MOST_WORDS = 160  # characters
DEPTH = 3  # frames of a thread
DUMP_SECONDS = 0.15
_FRAME = re.compile(r'  File ".*?([^/"]+)", line (\d+) in (.*)')


def gist(lines: Sequence[str]) -> str:
    """Return the essence of a program's output: the ends of its tracebacks, without PyTorch's additions; the places of its
    threads, if it was asked for them; otherwise its last lines."""
    found, is_within = [], False
    for number, line in enumerate(lines):
        if line.startswith("Traceback (most recent"):
            is_within = True
        elif is_within and line and not line[0].isspace():
            found.append(line)
            is_within = False
        elif line.endswith("(most recent call first):"):
            frames = itertools.takewhile(lambda each: each.startswith("  File"), lines[number + 1 :])
            found.append(" < ".join(_FRAME.sub(r"\1:\2 \3", each) for each in itertools.islice(frames, DEPTH)))
    return "; ".join(dict.fromkeys(found)) or " ".join(lines[-3:])


class Client:
    """Guards the list of events, which a separate thread fills. has_input: `tell` sends it lines."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], has_input: bool = False) -> None:
        self.argv = list(argv)
        self.started_ns = time.monotonic_ns()
        self.ended_ns = 0  # 0: it runs
        self._events: list[Event] = []
        self.other: list[str] = []
        self._is_over = False
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [word.replace("{start_ns}", str(self.started_ns)) for word in argv],
            env=dict(env),
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._take(line)
        self.process.wait()
        with self._changed:
            self.ended_ns = time.monotonic_ns()
            self._is_over = True
            self._changed.notify_all()

    def _take(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        with self._changed:
            if isinstance(event, dict):
                self._events.append(event)
            else:
                self.other.append(line.rstrip())
            self._changed.notify_all()

    # -- its output --------------------------------------------------------------------------------------------------

    def events(self, name: str) -> list[Event]:
        with self._changed:
            return [event for event in self._events if event.get("event") == name]

    def wait_for(self, name: str, seconds: float, since_ns: int = 0) -> Event | None:
        """The first such event after `since_ns`; None when the client ended without it, or the time is up."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for event in self._events:
                    if event.get("event") == name and event.get("monotonic_ns", 0) >= since_ns:
                        return event
                if self._is_over or not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return None

    def tell(self, line: str) -> None:
        """At its standard input; nothing where it has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def release(self) -> None:
        """Its standard input ends: a program that waits at its gate goes on."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait_for_line(self, beginning: str, seconds: float) -> str | None:
        """Return the first line that is not an event and begins so; None as in `wait_for`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self.other:
                    if line.startswith(beginning):
                        return line
                if self._is_over or not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return None

    @property
    def error_code(self) -> int | None:
        """The CUDA error that ended it."""
        errors = self.events(ERROR)
        return int(errors[0]["code"]) if errors else None

    @property
    def fate(self) -> str:
        """In a word: running, done, the CUDA error, or how it ended."""
        if self.is_running:
            return "running"
        if self.error_code is not None:
            return f"error {self.error_code}"
        status = self.process.returncode
        if not status:
            return "done"
        return f"signal {-status}" if status < 0 else f"status {status} {gist(self.other)[:MOST_WORDS]}".strip()

    @property
    def trouble(self) -> str:
        """`fate`, and what it printed; of a Python program that gets on no more, where it is."""
        if self.is_running and any(word.endswith("fault_on_signal.py") for word in self.argv):
            self.signal(signal.SIGQUIT)
            self.wait(DUMP_SECONDS)
        words = gist(self.other)[:MOST_WORDS]
        return self.fate if words in self.fate else f"{self.fate}: {words}"

    # -- its end -----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        with self._changed:
            return not self._is_over

    def wait(self, seconds: float) -> int | None:
        """Its exit status; None when it still runs."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._is_over:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return None
        return self.process.returncode

    def signal(self, number: int) -> None:
        if self.is_running:
            try:
                os.kill(self.process.pid, number)
            except ProcessLookupError:
                pass


def end_all(clients: Sequence[Client], seconds: float = 3.0) -> None:
    """Send SIGTERM, then SIGKILL to the remaining ones. Their kernels are short, so no other client is harmed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + seconds
        for client in clients:
            client.signal(number)
        for client in clients:
            client.wait(max(0.0, deadline - time.monotonic()))
