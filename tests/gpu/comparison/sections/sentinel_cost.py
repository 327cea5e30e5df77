"""What a sentinel costs where nothing faults: start of clients, memory, throughput; stock MPS, mpsd without it and with it.

The starts are split, and two more servers without a sentinel show what of it any other client costs: one with two clients, and
one with two of which one is stopped.  Each part takes what is left of the section's time.
"""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.containment import CONFIG, READY_SECONDS, SHORT, TORCH_PROGRAM
from tests.gpu.comparison.course import reports_of
from tests.gpu.comparison.stage import FORGIVING, Stage
from tests.gpu.comparison.system import System, SystemFailed

PAIRS, FRESH_PAIRS, RATE_PAIRS = 16, 2, 5
START_GOAL_MS, RATE_GOAL = 1.0, 0.99
RATE_SECONDS = 0.5
ROUND_SECONDS = 4.0  # the longest of a round over all systems
RATES_SECONDS, TORCH_SECONDS = 42.0, 28.0  # kept for the rates, and of that for PyTorch's
SPARE_SECONDS = 3.0
MEMORY_QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
PROGRAM = "mpsd-sentinel"
TOLD = f'[log]\nlevel = "debug"\n{FORGIVING}'  # relay.visited
TORCH_KINDS = ("train", "matmul")

Found = dict[str, list[float]]


@dataclass(slots=True)
class Starts:
    """The starts of clients of one system, each split: what CUDA's calls took, and, of mpsd's, what its relay did."""

    first_kernel: list[float] = field(default_factory=list)
    init: list[float] = field(default_factory=list)
    context: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)  # the process's own start, and module, memory, and kernel
    pids: list[int] = field(default_factory=list)

    def add(self, client: Client) -> None:
        [ready] = client.events("ready")
        whole, init, context = (float(ready[f"{name}_ms"]) for name in ("first_kernel", "init", "context"))
        self.first_kernel.append(whole)
        self.init.append(init)
        self.context.append(context)
        self.rest.append(whole - init - context)
        self.pids.append(client.pid)

    def in_words(self) -> str:
        parts = {"cuInit": self.init, "context": self.context, "rest": self.rest}
        return ", ".join(f"{name} {figures.ms(figures.median(each))}" for name, each in parts.items())


def run(stage: Stage) -> None:
    plain = stage.another("plain", stage.options.front_end, stage.mpsd, config=TOLD)
    guarded = stage.another("watched", stage.options.front_end, stage.mpsd, config=CONFIG)
    two = stage.another("two", stage.options.front_end, stage.mpsd, config=TOLD)
    stopped = stage.another("stopped", stage.options.front_end, stage.mpsd, config=TOLD)
    systems = {"stock": stage.vendor, "plain": plain, "guarded": guarded}
    _fresh(stage, systems)
    controls = {"two clients": two, "two, one stopped": stopped}
    holders = [_holder(stage, name, system) for name, system in systems.items()]
    for system in controls.values():
        system.renew()
        holders += [_hold(system), _hold(system)]
    holders[-1].signal(signal.SIGSTOP)
    _starts(stage, systems | controls)
    holders[-1].signal(signal.SIGCONT)
    end_all(holders)
    for system in (systems | controls).values():
        system.clients.clear()
    torch = _start_torch(stage, systems)
    _counter_rates(stage, systems)
    for kind in TORCH_KINDS if torch else ():
        _torch_rates(stage, {name: torch[name, kind] for name in systems}, kind)


def _fresh(stage: Stage, systems: dict[str, System]) -> None:
    """The first client of a daemon: servers start, and with them the sentinel."""
    found = {name: Starts() for name in systems}
    for _ in range(stage.trials(FRESH_PAIRS)):
        for name, system in systems.items():
            system.renew()
            found[name].add(_started(system))
    _add_starts(stage, "first client of a fresh daemon", systems, found, None)


def _starts(stage: Stage, systems: dict[str, System]) -> None:
    found = {name: Starts() for name in systems}
    for _ in range(stage.trials(PAIRS)):
        if found["guarded"].pids and stage.left() < RATES_SECONDS + ROUND_SECONDS:
            break
        for name, system in systems.items():
            found[name].add(_started(system))
    _add_starts(stage, "client beside another", systems, found, START_GOAL_MS)


def _add_starts(
    stage: Stage, what: str, systems: dict[str, System], found: dict[str, Starts], goal: float | None
) -> None:
    stage.keep(what, {name: _figures_of(each) for name, each in found.items()})
    stock, plain, guarded = (figures.median(found[name].first_kernel) or 0.0 for name in ("stock", "plain", "guarded"))
    stage.add(
        f"{what}: start to first kernel (median of {len(found['guarded'].first_kernel)})",
        vendor=figures.ms(stock),
        mpsd=f"{figures.ms(plain)}; with a sentinel {figures.ms(guarded)} ({guarded - plain:+.1f} ms)",
        goal="" if goal is None else f"+{goal:.0f} ms",
        met=None if goal is None else guarded - plain <= goal,
    )
    for name, each in found.items():
        total = f"{figures.ms(figures.median(each.first_kernel))} ({figures.ms(min(each.first_kernel))} to "
        cells = f"{total}{figures.ms(max(each.first_kernel))}): {each.in_words()}"
        is_stock = name == "stock"
        stage.add(
            f"{what}, {name}",
            **{"vendor" if is_stock else "mpsd": cells},
            remark="" if is_stock else _relayed(systems[name], each.pids),
        )


def _relayed(system: System, pids: Sequence[int]) -> str:
    """Return what mpsd's relay spent for each of these clients, of all its connections, and the start of its sentinels."""
    lines = (system.log / "mpsd.log").read_text(errors="replace").splitlines()
    visits = [json.loads(line) for line in lines if '"relay.visited"' in line]
    words = []
    for name in ("placed", "prepared", "linked"):
        sums = [sum(each[f"{name}_ms"] for each in visits if each["pid"] == pid) for pid in pids]
        words.append(f"{name} {figures.ms(figures.median(sums))}")
    count = sum(each["pid"] in pids for each in visits) / max(1, len(pids))
    reports = reports_of(system.log / "mpsd.log", 0)
    begun = {each["pid"]: each["at_ns"] for each in reports if each["kind"] == "STARTED"}
    armed = [(each["at_ns"] - begun[each["pid"]]) / 1e6 for each in reports if each["kind"] == "ARMED" and each["pid"] in begun]
    start = f"; a sentinel's start to armed {figures.ms(figures.median(armed))} ({len(armed)})" if armed else ""
    return f"relay: {', '.join(words)}, in {count:.1f} connections{start}"


def _figures_of(each: Starts) -> dict[str, list[float]]:
    return {"first_kernel": each.first_kernel, "init": each.init, "context": each.context, "rest": each.rest}


def _started(system: System) -> Client:
    """Return a client that ended after its first kernel."""
    client = system.client("counter", "--seconds", "0")
    client.wait(READY_SECONDS)
    if not client.events("ready"):
        raise SystemFailed(f"a client of {system.name} did not get to its first kernel: {client.fate}")
    system.clients.remove(client)
    return client


def _hold(system: System) -> Client:
    holder = system.client("hold")
    if not holder.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"a client of {system.name} did not start: {holder.fate}")
    return holder


def _holder(stage: Stage, name: str, system: System) -> Client:
    """A client that stays; the row is what it and its sentinel take."""
    system.renew()
    time.sleep(0.5)
    before = _gpu_mib(stage)
    holder = _hold(system)
    if system.has_spares:
        system.wait_for_spare(SPARE_SECONDS)
        time.sleep(1.0)  # its sentinel too
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


def _counter_rates(stage: Stage, systems: dict[str, System]) -> None:
    """A C program with short kernels, alone, in turns."""
    found: Found = {name: [] for name in systems}
    for _ in range(stage.trials(RATE_PAIRS)):
        if found["guarded"] and stage.left() < TORCH_SECONDS + ROUND_SECONDS:
            break
        for name, system in systems.items():
            found[name].append(_counter_rate(system))
    _add_rates(stage, "counter", found)


def _counter_rate(system: System) -> float:
    client = system.client(*SHORT, has_input=True)
    ready = client.wait_for("ready", READY_SECONDS)
    if ready is None:
        raise SystemFailed(f"{system.name}: a counter did not start: {client.fate} {client.events('error')}")
    time.sleep(RATE_SECONDS)
    client.release()
    end = client.wait_for("end", READY_SECONDS)
    if end is None:
        raise SystemFailed(f"{system.name}: a counter did not end: {client.fate}")
    system.clients.remove(client)
    return float(end["kernels"]) / (end["monotonic_ns"] - ready["monotonic_ns"]) * 1e9


def _start_torch(stage: Stage, systems: dict[str, System]) -> dict[tuple[str, str], Client]:
    """Start all co-runners of PyTorch, each of which works in its turns alone; none without PyTorch."""
    python = stage.options.torch_python
    if python is None or stage.options.is_simulated:
        return {}
    return {
        (name, kind): system.spawn([str(python), str(TORCH_PROGRAM), kind, "--turns"], None, True)
        for name, system in systems.items()
        for kind in TORCH_KINDS
    }


def _torch_rates(stage: Stage, clients: dict[str, Client], kind: str) -> None:
    for name, client in clients.items():
        client.tell("go")
        if not client.wait_for("ready", READY_SECONDS):
            raise SystemFailed(f"{name}: {kind} did not start: {client.fate} {client.events('error')}")
    found: Found = {name: [] for name in clients}
    for _ in range(stage.trials(RATE_PAIRS)):
        if found["guarded"] and stage.left() < ROUND_SECONDS:
            break
        for name, client in clients.items():
            found[name].append(_turn(name, kind, client))
    _add_rates(stage, kind, found)
    for client in clients.values():
        client.release()


def _turn(name: str, kind: str, client: Client) -> float:
    asked_ns = time.monotonic_ns()
    client.tell(str(RATE_SECONDS))
    turn = client.wait_for("turn", READY_SECONDS, asked_ns)
    if turn is None:
        raise SystemFailed(f"{name}: {kind} does not work: {client.fate} {client.events('error')}")
    return float(turn["steps"]) / float(turn["seconds"])


def _add_rates(stage: Stage, kind: str, found: Found) -> None:
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
