"""What a sentinel costs where nothing faults: start of clients, memory, throughput; stock MPS, mpsd without it and with it."""

import shutil
import subprocess
import time
from collections.abc import Sequence

from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.containment import CO_RUNNERS, CONFIG, READY_SECONDS, SHORT, Bench
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

PAIRS, FRESH_PAIRS, RATE_PAIRS = 20, 4, 6
START_GOAL_MS, RATE_GOAL = 1.0, 0.99
RATE_SECONDS = 1.5
MEMORY_QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
PROGRAM = "mpsd-sentinel"

Found = dict[str, list[float]]


def run(stage: Stage) -> None:
    plain = stage.another("plain", stage.options.front_end, stage.mpsd)
    guarded = stage.another("watched", stage.options.front_end, stage.mpsd, config=CONFIG)
    systems = {"stock": stage.vendor, "plain": plain, "guarded": guarded}
    _fresh(stage, systems)
    holders = [_holder(stage, name, system) for name, system in systems.items()]
    _starts(stage, systems)
    end_all(holders)
    for system in systems.values():
        system.clients.clear()
    for kind in CO_RUNNERS:
        _rates(stage, systems, kind)


def _fresh(stage: Stage, systems: dict[str, System]) -> None:
    """The first client of a daemon: servers start, and with them the sentinel."""
    found: Found = {name: [] for name in systems}
    for _ in range(stage.trials(FRESH_PAIRS)):
        for name, system in systems.items():
            system.renew()
            found[name].append(_first_kernel_ms(system))
    _add_starts(stage, "first client of a fresh daemon", found, None)


def _starts(stage: Stage, systems: dict[str, System]) -> None:
    found: Found = {name: [] for name in systems}
    for _ in range(stage.trials(PAIRS)):
        for name, system in systems.items():
            found[name].append(_first_kernel_ms(system))
    _add_starts(stage, "client beside another", found, START_GOAL_MS)


def _add_starts(stage: Stage, what: str, found: Found, goal: float | None) -> None:
    stage.keep(what, found)
    stock, plain, guarded = (figures.median(found[name]) or 0.0 for name in ("stock", "plain", "guarded"))
    stage.add(
        f"{what}: start to first kernel (median of {len(found['guarded'])})",
        vendor=figures.ms(stock),
        mpsd=f"{figures.ms(plain)}; with a sentinel {figures.ms(guarded)} ({guarded - plain:+.1f} ms)",
        goal="" if goal is None else f"+{goal:.0f} ms",
        met=None if goal is None else guarded - plain <= goal,
    )


def _first_kernel_ms(system: System) -> float:
    client = system.client("counter", "--seconds", "0")
    client.wait(READY_SECONDS)
    ready = client.events("ready")
    if not ready:
        raise SystemFailed(f"a client of {system.name} did not get to its first kernel: {client.fate}")
    system.clients.remove(client)
    return float(ready[0]["first_kernel_ms"])


def _holder(stage: Stage, name: str, system: System) -> Client:
    """A client that stays; the row is what it and its sentinel take."""
    system.renew()
    time.sleep(0.5)
    before = _gpu_mib(stage)
    holder = system.client("hold")
    if not holder.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"a client of {system.name} did not start: {holder.fate}")
    time.sleep(3.0)  # the spare's server too
    own = [pid for pid in processes.started_below(system.place) if processes.program_name(pid) == PROGRAM]
    resident = "; ".join(f"{processes.memory_mib(pid)[0]:.1f}" for pid in own)
    stage.add(
        f"{name}: GPU memory of a server, a spare server of mpsd's, one client, and the sentinel",
        mpsd=f"{_gpu_mib(stage) - before:.0f} MiB",
        remark=f"host, MiB resident of the sentinel's processes: {resident}" if own else "",
    )
    return holder


def _gpu_mib(stage: Stage) -> float:
    if stage.options.is_simulated or not shutil.which(MEMORY_QUERY[0]):
        return 0.0
    return float(subprocess.run(MEMORY_QUERY, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0])


def _rates(stage: Stage, systems: dict[str, System], kind: str) -> None:
    """One co-runner of each trial, alone, in turns."""
    found: Found = {name: [] for name in systems}
    bench = Bench(stage)
    for _ in range(stage.trials(RATE_PAIRS)):
        prepared = {name: bench.start_torch(system) for name, system in systems.items()} if kind != "long" else {}
        for name, system in systems.items():
            found[name].append(_rate(bench, system, kind, prepared.get(name, {})))
    stage.keep(f"rate of {kind}", found)
    ratio = figures.ratio(found["guarded"], found["plain"])
    rates = {name: figures.number(figures.median(each)) for name, each in found.items()}
    stage.add(
        f"{kind}: steps per second (median of {len(found['guarded'])})",
        vendor=rates["stock"],
        mpsd=f"{rates['plain']}; with a sentinel {rates['guarded']}",
        ratio=figures.times(ratio),
        goal=f">= {RATE_GOAL}",
        met=ratio is not None and ratio >= RATE_GOAL,
        remark=f"with over without; {figures.pair_range(found['guarded'], found['plain'])}; "
        f"with over stock {figures.times(figures.ratio(found['guarded'], found['stock']))}",
    )


def _rate(bench: Bench, system: System, kind: str, prepared: dict[str, Client]) -> float:
    unused = [each for name, each in prepared.items() if name != kind]
    end_all(unused)
    if kind in prepared:
        prepared[kind].tell("go")
    client = prepared.get(kind) or system.client(*SHORT, has_input=True)
    ready = client.wait_for("ready", READY_SECONDS)
    if ready is None:
        raise SystemFailed(f"{system.name}: {kind} did not start: {client.fate} {client.events('error')}")
    time.sleep(RATE_SECONDS)
    client.release()
    end = client.wait_for("end", READY_SECONDS)
    if end is None:
        raise SystemFailed(f"{system.name}: {kind} did not end: {client.fate}")
    _forget(system, [client, *unused])
    return float(end.get("steps", end.get("kernels"))) / (end["monotonic_ns"] - ready["monotonic_ns"]) * 1e9


def _forget(system: System, clients: Sequence[Client]) -> None:
    end_all(clients)
    system.clients[:] = [each for each in system.clients if each not in clients]
