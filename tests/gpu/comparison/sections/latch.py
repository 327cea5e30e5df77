"""When the vendor's server reads a newcomer's limits: they are changed as each line about it appears in the server's log.

mpsd lets the next client with other limits come only after the last of these lines (domains/limit_guard.py); this is why.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

BEFORE_PERCENT, AFTER_PERCENT = 25, 100
FULL_TRIALS = 4
LINE_SECONDS = 3.0
CLIENT_SECONDS = 10.0
PROCESS = r"Client \{{PID: {pid}, Context ID: 0\}} connected"
ASKED = r"Client \{{PID: {pid}, Context ID: [1-9]\d*\}} connected"
ACTIVE = r"Status of client \{{PID: {pid}, Context ID: [1-9]\d*\}} is ACTIVE"
MOMENTS: dict[str, tuple[str | None, float]] = {  # the line, and seconds after it
    "nothing changes": (None, 0.0),
    "its process is known": (PROCESS, 0.0),
    "its context is asked for": (ASKED, 0.0),
    "its context is ACTIVE": (ACTIVE, 0.0),
    "20 ms after that": (ACTIVE, 0.02),
    "50 ms after that": (ACTIVE, 0.05),
    "100 ms after that": (ACTIVE, 0.1),
    "200 ms after that": (ACTIVE, 0.2),
}


def run(stage: Stage) -> None:
    system = stage.vendor
    system.renew()
    system.warm(CLIENT_SECONDS)
    server = _server(system)
    for moment, (pattern, pause) in MOMENTS.items():
        seen = [_try(system, server, pattern, pause) for _ in range(stage.trials(FULL_TRIALS))]
        stage.keep(moment, seen)
        stage.add(f"{BEFORE_PERCENT} % until {moment}, then {AFTER_PERCENT} %: SMs", vendor=_words(seen))
    stage.add("lines of one client", vendor=_shape(system), remark="milliseconds since the first")


def _server(system: System) -> int:
    for _ in range(50):
        if servers := system.servers():
            return servers[0].pid
        time.sleep(0.1)
    raise SystemFailed(f"{system.name} has no server")


def _try(system: System, server: int, pattern: str | None, pause: float) -> tuple[int | None, bool]:
    """How many SMs the client got, and whether the line came in time to change anything."""
    system.ask(f"set_active_thread_percentage {server} {BEFORE_PERCENT}")
    log = system.log / "server.log"
    offset = log.stat().st_size
    client = system.client("smcount")
    came = pattern is not None and _wait_for_line(log, offset, pattern.format(pid=client.pid))
    if came:
        time.sleep(pause)
        system.ask(f"set_active_thread_percentage {server} {AFTER_PERCENT}")
    client.wait(CLIENT_SECONDS)
    said = client.events("sms")
    system.clients.remove(client)
    return (said[0]["seen"] if said else None), came


def _wait_for_line(log: Path, offset: int, pattern: str) -> bool:
    deadline = time.monotonic() + LINE_SECONDS
    wanted = re.compile(pattern)
    while time.monotonic() < deadline:
        if any(wanted.search(line) for line in _lines(log, offset)):
            return True
    return False


def _lines(log: Path, offset: int) -> Iterator[str]:
    with log.open("rb") as file:
        file.seek(offset)
        yield from file.read().decode(errors="replace").splitlines()


def _shape(system: System) -> str:
    """Return the log lines about one client, with their times."""
    offsets = {name: (system.log / name).stat().st_size for name in ("control.log", "server.log")}
    client: Client = system.client("smcount")
    client.wait(CLIENT_SECONDS)
    found = []
    for name, offset in offsets.items():
        for line in _lines(system.log / name, offset):
            if stamp := re.match(r"\[\S+ (\d+):(\d+):([\d.]+) \w+ +\d+\] (.*)", line):
                at = int(stamp[1]) * 3600 + int(stamp[2]) * 60 + float(stamp[3])
                found.append((at, stamp[4].replace(str(client.pid), "P")))
    found.sort()
    system.clients.remove(client)
    return "; ".join(f"{(at - found[0][0]) * 1e3:.0f} {text[:70]}" for at, text in found)


def _words(seen: list[tuple[int | None, bool]]) -> str:
    return ", ".join(f"{sms}{'' if came else ' (no line)'}" for sms, came in seen)
