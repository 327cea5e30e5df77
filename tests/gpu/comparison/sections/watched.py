"""What being watched, shielded and held costs a client: its start, and its kernels afterwards, in interleaved pairs."""

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

PAIRS = 40
RUN_SECONDS = "0.15"
READY_SECONDS = 10.0
OFF = '[faults]\nuvm_events = "off"\nshield = "off"\nhold = "off"\nnvml_events = "off"\ncore_dumps = "off"\n'
START_GOAL_MS = 1.0


def run(stage: Stage) -> None:
    watched = stage.another("watched", stage.options.front_end, stage.mpsd)
    plain = stage.another("plain", stage.options.front_end, stage.mpsd, config=OFF)
    for system in (watched, plain):
        system.start()
        system.warm(READY_SECONDS)
    starts: dict[str, list[float]] = {"watched": [], "plain": []}
    rates: dict[str, list[float]] = {"watched": [], "plain": []}
    for number in range(stage.trials(PAIRS)):
        pair = (watched, plain) if number % 2 else (plain, watched)
        for system in pair:
            start_ms, rate = _one(system)
            starts[system.name].append(start_ms)
            rates[system.name].append(rate)
    stage.keep("starts_ms", starts)
    stage.keep("kernels_per_second", rates)
    more = _difference(starts)
    stage.add(
        "start to first kernel, median: plain, watched",
        mpsd=f"{figures.ms(figures.median(starts['plain']))}, {figures.ms(figures.median(starts['watched']))}",
        ratio=figures.times(figures.ratio(starts["watched"], starts["plain"])),
        goal=f"{START_GOAL_MS:.0f} ms more",
        met=more is not None and more <= START_GOAL_MS,
        remark=f"{more:.2f} ms more, {figures.pair_range(starts['watched'], starts['plain'])}" if more is not None else "",
    )
    stage.add(
        "kernels per second afterwards, median: plain, watched",
        mpsd=f"{figures.number(figures.median(rates['plain']))}, {figures.number(figures.median(rates['watched']))}",
        ratio=figures.times(figures.ratio(rates["watched"], rates["plain"])),
        remark=figures.pair_range(rates["watched"], rates["plain"]),
    )


def _one(system: System) -> tuple[float, float]:
    client = system.client("counter", "--seconds", RUN_SECONDS)
    client.wait(READY_SECONDS)
    ready, end = client.events("ready"), client.events("end")
    end_all([client])
    system.clients.remove(client)
    if not ready or not end:
        raise SystemFailed(f"{system.name}: a client did not run: {client.fate}")
    seconds = (end[0]["monotonic_ns"] - ready[0]["monotonic_ns"]) / 1e9
    return float(ready[0]["first_kernel_ms"]), end[0]["kernels"] / seconds


def _difference(starts: dict[str, list[float]]) -> float | None:
    watched, plain = figures.median(starts["watched"]), figures.median(starts["plain"])
    return None if watched is None or plain is None else watched - plain
