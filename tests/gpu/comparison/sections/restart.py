"""`kill -9` of the control daemon under 8 running clients, a 9th that starts while it is away, and a new daemon."""

import os
import signal
import time
from dataclasses import asdict, dataclass

from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

CLIENTS = 8
AWAY_SECONDS = 0.5
READY_SECONDS = 10.0
LISTED_SECONDS = 5.0
PERCENT = "50.0"
MEMBER = "a client of the new daemon"
COUNTING = ("counter", "--seconds", "600", "--ms", "50")


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was left half a second after the daemon was killed, and a new one started."""

    started: str
    lived: int
    worst_ms: float | None
    ninth: str
    ninth_ms: float | None
    known: int
    had: int
    percent: str


def run(stage: Stage) -> None:
    theirs, ours = (_kill_and_restart(stage, system) for system in stage.both)
    for what, attribute, shown, goal, met in (
        ("running clients that go on", "lived", _of_8, "8 of 8", ours.lived == CLIENTS),
        ("their worst stall since their start", "worst_ms", figures.ms, "", None),
        ("-d again", "started", str, "", None),
        ("the 9th, started while it was away", "ninth", str, MEMBER, ours.ninth == MEMBER),
        ("... start to first kernel", "ninth_ms", figures.ms, "", None),
        ("servers and clients the new daemon knows", "known", _of_8, "8 of 8", ours.known == ours.had),
        ("a default limit set before", "percent", str, PERCENT, ours.percent == PERCENT),
    ):
        cells = {"vendor": shown(getattr(theirs, attribute)), "mpsd": shown(getattr(ours, attribute))}
        stage.add(f"kill -9: {what}", **cells, goal=goal, met=met)


def _of_8(count: int) -> str:
    return figures.of(count, CLIENTS)


def _kill_and_restart(stage: Stage, system: System) -> Aftermath:
    system.renew()
    clients = [system.client(*COUNTING) for _ in range(CLIENTS)]
    if not all(client.wait_for("ready", READY_SECONDS) for client in clients):
        raise SystemFailed(f"{system.name}: {[client.fate for client in clients]}")
    if system is stage.mpsd:
        system.wait_for_spare(READY_SECONDS)
    before = _pairs(system)
    system.ask("set_default_active_thread_percentage 50")
    killed_ns = _kill(system)
    ninth = system.client(*COUNTING)
    time.sleep(AWAY_SECONDS)
    started = _restart(system)
    ready = ninth.wait_for("ready", READY_SECONDS)
    lived = _count_counting(clients)
    after, until = _pairs(system), time.monotonic() + LISTED_SECONDS
    while ready and not any(pid == ninth.pid for _, pid in after) and time.monotonic() < until:
        after = _pairs(system)
    is_member = ninth.is_running and any(pid == ninth.pid for _, pid in after)
    found = Aftermath(
        started,
        lived,
        _worst_ms(clients, killed_ns),
        MEMBER if is_member else "runs without MPS" if ready else ninth.fate,
        float(ready["first_kernel_ms"]) if ready else None,
        len(before & after),
        len(before),
        system.ask("get_default_active_thread_percentage").out.strip(),
    )
    stage.keep(system.name, asdict(found))
    stage.clear()
    system.renew()
    return found


def _pairs(system: System) -> set[tuple[int, int]]:
    """Each client with its server."""
    return {(server.pid, pid) for server in system.servers() for pid in server.clients}


def _worst_ms(clients: list[Client], since_ns: int) -> float | None:
    ticks = [tick for client in clients for tick in client.events("tick") if tick["monotonic_ns"] > since_ns]
    return max((tick["worst_ms"] for tick in ticks), default=None)


def _kill(system: System) -> int:
    pid = system.pid()
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    processes.wait_gone(pid, 5)
    return killed_ns


def _restart(system: System) -> str:
    try:
        return figures.ms(system.start())
    except SystemFailed as error:  # over what the killed one left behind
        return str(error)


def _count_counting(clients: list[Client]) -> int:
    since, end = time.monotonic_ns(), time.monotonic() + 2
    return sum(client.wait_for("tick", max(0.0, end - time.monotonic()), since) is not None for client in clients)
