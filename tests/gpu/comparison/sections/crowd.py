"""64 clients at the same moment, where one server takes 48."""

import time

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System

CLIENTS = 64
START_SECONDS = 25.0
COUNT_SECONDS = 5.0


def run(stage: Stage) -> None:
    running: dict[str, int] = {}
    told: dict[str, tuple[str, str]] = {}
    servers: dict[str, str] = {}
    for system in stage.both:
        system.renew()
        kernel_us = "20000" if stage.options.is_simulated else "100"  # a simulated GPU needs the processor for each
        counting = ("counter", "--seconds", "600", "--ms", "200", "--kernel-us", kernel_us)
        clients = [system.client(*counting) for _ in range(CLIENTS)]
        all_ms = _until_all_ready(clients, min(START_SECONDS, stage.left() / 2))
        running[system.name] = _count_counting(clients)
        stage.keep(system.name, {"first kernel after, ms": all_ms, "fates": [client.fate for client in clients]})
        told[system.name] = (_tally(clients), _spread(all_ms))
        stage.keep(f"{system.name} servers", [(s.pid, s.status, len(s.clients)) for s in system.servers()])
        servers[system.name] = _servers(system)
        stage.clear()
    stage.add(
        "64 clients at once: running and counting",
        vendor=figures.of(running["vendor"], CLIENTS),
        mpsd=figures.of(running["mpsd"], CLIENTS),
        goal=figures.of(CLIENTS, CLIENTS),
        met=running["mpsd"] == CLIENTS,
        remark=f"vendor: {told['vendor'][0]}; mpsd: {told['mpsd'][0]}",
    )
    stage.add("first kernel done: fastest, median, last", vendor=told["vendor"][1], mpsd=told["mpsd"][1])
    stage.add("clients of each server", **servers)


def _until_all_ready(clients: list[Client], seconds: float) -> list[float]:
    """Milliseconds from each client's start to its first kernel, of those that came so far."""
    end = time.monotonic() + seconds
    for client in clients:
        client.wait_for("ready", max(0.0, end - time.monotonic()))
    return [event["first_kernel_ms"] for client in clients for event in client.events("ready")]


def _count_counting(clients: list[Client]) -> int:
    """How many go on when all are there."""
    since = time.monotonic_ns()
    end = time.monotonic() + COUNT_SECONDS
    return sum(client.wait_for("tick", max(0.0, end - time.monotonic()), since) is not None for client in clients)


def _tally(clients: list[Client]) -> str:
    fates = [client.fate for client in clients]
    return ", ".join(f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates))


def _spread(times: list[float]) -> str:
    return ", ".join(figures.ms(figures.quantile(times, share)) for share in (0, 0.5, 1))


def _servers(system: System) -> str:
    return ", ".join(f"{len(server.clients)} {server.status}" for server in system.servers())
