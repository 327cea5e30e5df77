"""The cost of mpsd as its clients grow: memory and processor time while they are idle, and the time of a command.

    .venv/bin/python tests/bench/bench_growth.py [--gpu] [--clients 0,64,250,1000] [--json FILE]

It uses as many fault domains as needed; the vendor's daemon is measured with as many clients as it takes, 48.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import setting
from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

SIZES = (0, 64, 250, 1000)
GPU_SIZES = (0, 64, 200)  # a context takes about half a GiB of the GPU's memory
AT_ONCE = 25  # started together: a machine has more clients than processors
VENDOR_CLIENTS = 48
START_SECONDS = 60.0
SETTLE_SECONDS = 3.0  # spares start a second after the last client
IDLE_SECONDS = 5.0
COMMANDS = 20
CONFIG = "[domains]\nmax_domains = 48\n"
MPSD, KEEPER, DOMAINS = "mpsd", "mpsd-keeper", "vendor daemons of its domains"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of some daemons together, while nothing happens."""

    count: int
    resident_mib: float
    cpu_percent: float

    def __str__(self) -> str:
        return f"{self.resident_mib:.1f} MiB, {self.cpu_percent:.3f} %"


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    grown = stage.another("grown", stage.options.front_end, stage.mpsd, config=CONFIG)
    grown.start()
    stage.vendor.ready()
    _grow(stage, stage.vendor, VENDOR_CLIENTS)
    [vendor] = _costs({"vendor": [stage.vendor.pid()]}).values()
    times = {"vendor": _command_ms(stage.vendor)}
    for size in asked.clients or (GPU_SIZES if asked.gpu else SIZES):
        each_ms = _grow(stage, grown, size)
        time.sleep(SETTLE_SECONDS)
        costs, times["mpsd"] = _costs(_daemons(grown)), _command_ms(grown)
        _rows(stage, size, vendor, costs, times, each_ms)
        stage.keep(
            f"{size} clients", {name: asdict(cost) for name, cost in costs.items()} | {"get_server_list, ms": times["mpsd"]}
        )


def _grow(stage: Stage, system: System, size: int) -> float:
    """Up to so many clients that hold a context; milliseconds a client took, on average."""
    began, before = time.monotonic(), len(system.clients)
    while len(system.clients) < size:
        some = [system.client("hold") for _ in range(min(AT_ONCE, size - len(system.clients)))]
        if missing := [client.fate for client in some if not client.wait_for("ready", min(START_SECONDS, stage.left()))]:
            raise SystemFailed(f"{system.name}: of {len(system.clients)} clients {len(missing)} did not start: {missing[0]}")
    stage.say(f"{len(system.clients)} clients of {system.name}")
    return (time.monotonic() - began) * 1e3 / max(1, size - before)


def _daemons(system: System) -> dict[str, list[int]]:
    ours = {pid: processes.program_name(pid) for pid in processes.started_below(system.place)}
    mpsd = system.pid()
    return {
        MPSD: [mpsd],
        KEEPER: [pid for pid, name in ours.items() if name == KEEPER],
        DOMAINS: [pid for pid, name in ours.items() if name == system.control.name and pid != mpsd],
    }


def _costs(daemons: dict[str, list[int]]) -> dict[str, Cost]:
    """Memory now, and the share of a processor over some idle seconds."""
    before = {name: sum(map(processes.cpu_seconds, pids)) for name, pids in daemons.items()}
    time.sleep(IDLE_SECONDS)
    spent = {name: sum(map(processes.cpu_seconds, pids)) - before[name] for name, pids in daemons.items()}
    return {
        name: Cost(len(pids), sum(processes.memory_mib(pid)[0] for pid in pids), 100 * spent[name] / IDLE_SECONDS)
        for name, pids in daemons.items()
    }


def _command_ms(system: System) -> float:
    return figures.median([system.ask("get_server_list").ms for _ in range(COMMANDS)]) or 0.0


def _rows(stage: Stage, size: int, vendor: Cost, costs: dict[str, Cost], times: dict[str, float], each_ms: float) -> None:
    keeper, domains = costs[KEEPER], costs[DOMAINS]
    stage.add(
        f"{size} idle clients: resident, processor",
        vendor=str(vendor),
        mpsd=str(costs[MPSD]),
        remark=f"vendor's with {VENDOR_CLIENTS}; keeper {keeper}; {domains.count} vendor daemons {domains}",
    )
    stage.add(
        f"{size} idle clients: get_server_list",
        vendor=figures.ms(times["vendor"]),
        mpsd=figures.ms(times["mpsd"]),
        ratio=figures.times(times["mpsd"] / times["vendor"]),
        remark=f"each new client took {each_ms:.0f} ms, {AT_ONCE} at once" if size else "",
    )


if __name__ == "__main__":
    options = setting.parser("growth", __doc__)
    options.add_argument("--clients", type=lambda text: [int(word) for word in text.split(",")], help="numbers, rising")
    sys.exit(setting.run("growth", options.parse_args(), measure))
