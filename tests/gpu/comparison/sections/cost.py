"""What the daemons themselves cost: memory and processor time with 64 idle clients, and the time of one command."""

import time
from dataclasses import asdict, dataclass

from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.stage import Stage

CLIENTS = {"vendor": 48, "mpsd": 64}
START_SECONDS = 25.0
IDLE_SECONDS = 10.0
COMMANDS = 40
MEMORY_GOAL_MIB = 64.0
CPU_GOAL_PERCENT = 0.1
KEEPER = "mpsd-keeper"


@dataclass(frozen=True, slots=True)
class Use:
    """Of one daemon, over some idle seconds."""

    resident_mib: float
    share_mib: float  # of what it shares with others, its part (PSS)
    cpu_percent: float


def run(stage: Stage) -> None:
    for system in stage.both:
        system.renew()
        clients = [system.client("hold") for _ in range(CLIENTS[system.name])]
        end = time.monotonic() + START_SECONDS
        running = sum(client.wait_for("ready", max(0.0, end - time.monotonic())) is not None for client in clients)
        stage.say(f"{running} clients of {system.name}")
    stage.mpsd.wait_for_spare(10)
    watched = _watched(stage)
    stage.keep("processes", watched)
    before = {name: sum(map(processes.cpu_seconds, pids)) for name, pids in watched.items()}
    time.sleep(min(IDLE_SECONDS, stage.left() - 5))  # the daemons are idle; so are we
    used = {name: _use(pids, before[name], IDLE_SECONDS) for name, pids in watched.items()}
    stage.keep("use", {name: asdict(use) for name, use in used.items()})
    _report(stage, used)
    _commands(stage)


def _watched(stage: Stage) -> dict[str, list[int]]:
    """Return the control daemons: the vendor's; or mpsd, its keeper, and the vendor daemons of its domains."""
    vendor, mpsd = stage.vendor.pid(), stage.mpsd.pid()
    ours = {pid: processes.program_name(pid) for pid in processes.started_below(stage.mpsd.place)}
    return {
        "vendor": [vendor],
        "mpsd": [mpsd],
        "keeper": [pid for pid, name in ours.items() if name == KEEPER],
        "domains": [pid for pid, name in ours.items() if name == stage.options.vendor.name and pid != mpsd],
    }


def _use(pids: list[int], cpu_before: float, seconds: float) -> Use:
    memory = [processes.memory_mib(pid) for pid in pids]
    spent = sum(map(processes.cpu_seconds, pids)) - cpu_before
    return Use(sum(each[0] for each in memory), sum(each[1] for each in memory), 100 * spent / seconds)


def _report(stage: Stage, used: dict[str, Use]) -> None:
    ours, theirs = used["mpsd"], used["vendor"]
    beside = (
        f"keeper {used['keeper'].resident_mib:.1f} MiB, vendor daemons of all domains {used['domains'].resident_mib:.1f} MiB"
    )
    stage.add(
        "control daemon with 64 clients (vendor: 48): resident",
        vendor=f"{theirs.resident_mib:.1f} MiB",
        mpsd=f"{ours.resident_mib:.1f} MiB",
        goal=f"< {MEMORY_GOAL_MIB:g} MiB",
        met=0 < ours.resident_mib < MEMORY_GOAL_MIB,
        remark=f"PSS {ours.share_mib:.1f} MiB; beside it {beside}",
    )
    stage.add(
        f"... processor time over {IDLE_SECONDS:g} idle seconds",
        vendor=f"{theirs.cpu_percent:.3f} %",
        mpsd=f"{ours.cpu_percent:.3f} %",
        goal=f"< {CPU_GOAL_PERCENT} %",
        met=ours.cpu_percent < CPU_GOAL_PERCENT,
        remark=f"vendor daemons of all domains {used['domains'].cpu_percent:.3f} %",
    )
    listed = len(stage.mpsd.servers())
    servers = len(stage.mpsd.server_processes())
    stage.add("... domains with clients, servers", vendor="1, 1", mpsd=f"{listed}, {servers}")


def _commands(stage: Stage) -> None:
    """Run one command after the other, each in a new process."""
    for command in ("get_default_active_thread_percentage", "get_server_list", "ps"):
        times: dict[str, list[float]] = {"vendor": [], "mpsd": []}
        for _ in range(stage.trials(COMMANDS)):
            for system in stage.both:
                times[system.name].append(system.ask(command).ms)
        stage.add(
            f"{command}: process start to its end (median of {len(times['mpsd'])})",
            vendor=figures.ms(figures.median(times["vendor"])),
            mpsd=figures.ms(figures.median(times["mpsd"])),
            ratio=figures.times(figures.ratio(times["mpsd"], times["vendor"])),
            remark=f"slowest {figures.ms(max(times['vendor']))}, {figures.ms(max(times['mpsd']))}",
        )
