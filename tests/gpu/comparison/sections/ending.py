"""`quit` while a client runs: what becomes of newcomers, and what is left when it returns."""

import time
from pathlib import Path

from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

WATCHER = Path(__file__).resolve().parents[2] / "watch_processes.py"
CLIENT_SECONDS = 2.0
NEWCOMERS = 5
HANG_SECONDS = 4.0
QUIT_SECONDS = 15.0
REFUSED = "error 805"


def run(stage: Stage) -> None:
    fates: dict[str, str] = {}
    quits: dict[str, str] = {}
    left: dict[str, str] = {}
    refused = 0
    for system in stage.both:
        system.renew()
        running = system.client("counter", "--seconds", str(CLIENT_SECONDS))
        if not running.wait_for("ready", 10.0):
            raise SystemFailed(f"{system.name}: {running.fate}")
        watcher = system.spawn([str(stage.options.python), str(WATCHER)])
        watcher.wait_for("processes", 5.0)
        session = system.spawn(["sh", "-c", f"echo quit | {system.control}"])
        time.sleep(0.2)  # until the daemon has received it; no event reports that
        newcomers = [system.client("counter", "--seconds", "0.1") for _ in range(NEWCOMERS)]
        ended = [client.wait(HANG_SECONDS) is not None for client in newcomers]
        status = session.wait(QUIT_SECONDS)
        took_ms = (time.monotonic_ns() - session.started_ns) / 1e6
        left[system.name] = _left(system)
        plain = _plain(watcher, newcomers)
        fates[system.name] = _tally(newcomers, ended) + (f"; NVML saw {plain} outside MPS" if plain else "")
        quits[system.name] = f"status {status} after {figures.ms(took_ms)}, the running client {running.fate}"
        refused = sum(client.fate == REFUSED for client in newcomers)
        stage.keep(system.name, {"newcomers": [client.fate for client in newcomers], "watched": watcher.events("processes")})
        stage.clear()
        system.kill()
    stage.add(f"{NEWCOMERS} clients that arrive during quit", **fates, goal=f"{NEWCOMERS} {REFUSED}", met=refused == NEWCOMERS)
    stage.add("quit", **quits)
    stage.add("processes left when quit returns", **left, goal="none", met=left["mpsd"] == "none")


def _left(system: System) -> str:
    """Return the names of MPS processes, as `ps | grep nvidia-cuda-mps` would find them, without zombies."""
    names = [processes.program_name(pid) for pid in processes.started_below(system.place)]
    found = [name for name in names if name.startswith(("nvidia-cuda-mps", "mpsd"))]
    return ", ".join(sorted(found)) or "none"


def _plain(watcher: Client, newcomers: list[Client]) -> list[int]:
    """Newcomers that NVML saw computing without MPS.  In a container its pids may be the host's: then it sees none."""
    seen = {pid for event in watcher.events("processes") for pid in set(event["plain"]) - set(event["mps"])}
    return sorted(seen & {client.pid for client in newcomers})


def _tally(clients: list[Client], ended: list[bool]) -> str:
    fates = [client.fate if has_ended else "hung" for client, has_ended in zip(clients, ended, strict=True)]
    return ", ".join(f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates))
