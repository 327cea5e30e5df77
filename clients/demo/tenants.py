"""The tenants: test clients (tests/clients) as processes, watched by the lines of JSON they print."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stage import Stage

STRIP_CELLS = 32
_LONG_SECONDS = "3600"
_SHOWN = {"=": "good", "X": "bad", ".": "wait", "-": "wait"}


@dataclass(frozen=True, slots=True)
class User:
    """The user that a tenant runs as; None for the user who plays the scene."""

    uid: int | None

    @property
    def name(self) -> str:
        return f"uid {os.geteuid() if self.uid is None else self.uid}"


class Program:
    """Guards one client process and the unfinished line at the end of what it printed."""

    def __init__(self, arguments: list[str], environ: Mapping[str, str], user: User) -> None:
        self.process = subprocess.Popen(
            [*arguments, "--json"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the scene, which then ends its programs in order
            user=user.uid,
            group=user.uid,
            extra_groups=None if user.uid is None else [],
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._rest = b""

    def events(self) -> Iterator[dict[str, Any]]:
        """Return the lines printed since the last call."""
        assert self.process.stdout is not None
        while data := self.process.stdout.read(65536):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        """Kernels last a fraction of a millisecond, so the signal harms no other client."""
        if not self.has_ended:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@dataclass(slots=True)
class Tenant:
    """A program that counts on the GPU. Its state comes from its own output and its end."""

    name: str
    user: User
    stage: Stage
    program: Program | None = None
    count: int = 0
    worst_ms: float = 0.0
    error: str = ""  # what ended it, or refused it
    refusals: int = 0
    asked_at: float | None = None  # first start, CLOCK_MONOTONIC
    ready_at: float | None = None
    is_dead: bool = False
    _strip: list[str] = field(default_factory=list)
    _has_ticked: bool = False

    def start(self, clients: Path, environ: Mapping[str, str]) -> None:
        if self.program:
            self.program.end()
        now = time.monotonic()
        self.asked_at = self.asked_at or now
        arguments = [str(clients / "counter"), "--seconds", _LONG_SECONDS, "--ms", "100", "--kernel-us", "200"]
        self.program = Program(arguments, environ, self.user)

    def listen(self) -> None:
        """Read the program's output, and whether it has ended."""
        if self.program is None or self.is_dead:
            return
        has_ended = self.program.has_ended  # before reading, so that its last output is not missed
        for event in self.program.events():
            self._hear(event)
        if has_ended and self.ready_at is not None:
            self.is_dead = True
            self.error = self.error or f"exit status {self.program.process.returncode}"

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            self.ready_at, self.error = event["monotonic_ns"] / 1e9, ""
        elif event["event"] == "tick":
            self.count, self.worst_ms, self._has_ticked = event["count"], event["worst_ms"], True
        elif event["event"] == "error":
            self.error = f"{event['code']} {event['error']}"
            self.refusals += self.ready_at is None

    @property
    def is_counting(self) -> bool:
        return self.ready_at is not None and not self.is_dead

    @property
    def is_refused(self) -> bool:
        """Return whether its program could not start, and has ended."""
        return self.program is not None and self.ready_at is None and self.program.has_ended

    @property
    def waited_seconds(self) -> float:
        """Return the time from its first start to its first kernel."""
        assert self.asked_at is not None
        return (self.ready_at or time.monotonic()) - self.asked_at

    def end(self) -> None:
        if self.program:
            self.program.end()

    # -- how it is shown ---------------------------------------------------------------------------------------------

    def mark_cell(self) -> None:
        """Append one cell to its strip: `=` counted, `-` stood still, `.` waits, `X` died."""
        if self.is_dead:
            self._strip.append(" " if "X" in self._strip else "X")
        elif self.count:
            self._strip.append("=" if self._has_ticked else "-")
        else:
            self._strip.append("." if self.asked_at else " ")
        self._has_ticked = False

    def draw(self, is_plain: bool) -> str:
        if is_plain:
            return f"{self.name} {self.count:,} {self._state}" if self.asked_at else f"{self.name} -"
        cells = "".join(self._strip[-STRIP_CELLS:]).ljust(STRIP_CELLS)
        strip = "".join(self.stage.paint(_SHOWN[cell], cell) if cell in _SHOWN else cell for cell in cells)
        colour = "bad" if self.is_dead else "good" if self.is_counting else "wait"
        state = self.stage.paint(colour, f"{self._state:<14}") if self.asked_at else ""
        return f"   {self.name}  {self.user.name:<9} |{strip}| {self.count:>9,}  {state}".rstrip()

    @property
    def _state(self) -> str:
        code = self.error.partition(" ")[0]
        if self.is_dead:
            return f"died: {code}" if code.isdigit() else "died"
        if self.is_counting:
            return "counting"
        return f"refused: {code}" if code.isdigit() else "waiting"
