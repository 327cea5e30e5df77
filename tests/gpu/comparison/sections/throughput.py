"""Steady state: kernels per second of a C client, alone and with four co-runners.  After its start mpsd is not in the way."""

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

PAIRS = 4
SECONDS = 1.2
CO_RUNNERS = 4
READY_SECONDS = 15.0
NOISE = 0.05  # what counts as the same


def run(stage: Stage) -> None:
    for system in stage.both:
        system.warm(READY_SECONDS)
    for beside in (0, CO_RUNNERS):
        rates: dict[str, list[float]] = {"vendor": [], "mpsd": []}
        stalls: dict[str, list[float]] = {"vendor": [], "mpsd": []}
        for _ in range(stage.trials(PAIRS)):
            for system in stage.both:
                rate, stall = _rate(system, beside)
                rates[system.name].append(rate)
                stalls[system.name].append(stall)
        _report(stage, beside, rates, stalls)


def _rate(system: System, beside: int) -> tuple[float, float]:
    """Kernels per second of all together while all run, and the longest that one of them waited for a kernel."""
    before = len(system.clients)
    clients = [system.client("counter", "--seconds", str(SECONDS + 0.3 * bool(beside))) for _ in range(1 + beside)]
    for client in clients:
        if client.wait(READY_SECONDS + SECONDS) is None or not client.events("end"):
            raise SystemFailed(f"{system.name}: a client did not run to its end: {client.fate}")
    end_all(clients)
    del system.clients[before:]
    return sum(_own_rate(client) for client in clients), max(client.events("end")[0]["worst_ms"] for client in clients)


def _own_rate(client: Client) -> float:
    ready, end = client.events("ready")[0], client.events("end")[0]
    return float(end["kernels"]) / (end["monotonic_ns"] - ready["monotonic_ns"]) * 1e9


def _report(stage: Stage, beside: int, rates: dict[str, list[float]], stalls: dict[str, list[float]]) -> None:
    who = f"C client and {beside} co-runners, together" if beside else "C client alone"
    ratio = figures.ratio(rates["mpsd"], rates["vendor"])
    stage.keep(who, {"kernels per second": rates, "worst stall, ms": stalls})
    stage.add(
        f"{who}: kernels per second (median of {len(rates['mpsd'])})",
        vendor=figures.number(figures.median(rates["vendor"])),
        mpsd=figures.number(figures.median(rates["mpsd"])),
        ratio=figures.times(ratio),
        goal=f">= {1 - NOISE}",
        met=ratio is not None and ratio >= 1 - NOISE,
        remark=figures.pair_range(rates["mpsd"], rates["vendor"]),
    )
    worst = {name: figures.ms(max(each)) for name, each in stalls.items()}
    stage.add(f"{who}: worst stall", **worst)
