"""Processes, seen from outside: what they are, whether they run; and waiting for something that they do."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

EPOLL_WAITS = ("232", "281")  # epoll_wait, epoll_pwait on x86-64
EVENT_SECONDS = 20.0  # a test has 30; of two processors that many others use, 10 are too few for a start of mpsd

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found], seconds: float = EVENT_SECONDS) -> Found:
    """What `look` finds, as soon as it finds something true.  An AssertionError that names it when the time is up."""
    until = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(0.005)


def variable(pid: int, name: str) -> str:
    """Return the environment that a process was started with; empty if the process has ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = name.encode() + b"="
    return next((entry[len(prefix) :].decode() for entry in entries if entry.startswith(prefix)), "")


def state_of(pid: int) -> str:
    """The letter of proc(5); X for a process that has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return text[text.rfind(")") + 2]


def stop_idle(pid: int) -> None:
    """Stop a process (SIGSTOP) at a moment when it waits for events: an event loop counts a stop in a step as a block."""

    def is_stopped_idle() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_for(f"pid {pid} to stop", lambda: state_of(pid) == "T")
        if Path(f"/proc/{pid}/syscall").read_text().split()[0] in EPOLL_WAITS:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_for(f"pid {pid} to be idle", is_stopped_idle)


def is_running(pid: int) -> bool:
    """A zombie is not running."""
    return state_of(pid) not in "ZX"


def program_of(pid: int) -> str:
    """The base name of argv[0]; empty for a zombie."""
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode())
    except OSError:
        return ""
