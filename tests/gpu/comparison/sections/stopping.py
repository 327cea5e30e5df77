"""Ends of clients in the middle of a kernel, each with a co-runner in the same domain: what it sees of them.

The vendor's side is a plain signal.  mpsd: the same signal, which it can only cushion by holding what the work needs, and
client.stop, which ends the work first.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison import figures, trials
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System

TRIALS = 5
SECOND_LONG = ("counter", "--seconds", "600", "--ms", "50", "--kernel-us", "1000000")
ENDLESS = ("faulter", "hang", "--linger", "600")
IN_FLIGHT_SECONDS = 0.3
SETTLE_SECONDS = 2.5  # by then what is held has been let go
End = Callable[[System, Client], str]


@dataclass(slots=True)
class Trial:
    co_runner: str
    stall_ms: float | None
    took_ms: float
    told: str


def run(stage: Stage) -> None:
    stage.vendor.renew()
    stage.mpsd.renew()
    for what, work, theirs, ours, is_goal in (
        ("kill -9, a kernel of 1 s", SECOND_LONG, _signal(signal.SIGKILL), _signal(signal.SIGKILL), True),
        ("SIGTERM, a kernel of 1 s", SECOND_LONG, _signal(signal.SIGTERM), _signal(signal.SIGTERM), True),
        ("kill -9, an endless kernel", ENDLESS, _signal(signal.SIGKILL), _signal(signal.SIGKILL), False),
        ("client.stop, an endless kernel", ENDLESS, None, _stop(way="terminate"), True),
        ("client.stop --drain, a kernel of 1 s", SECOND_LONG, None, _stop(way="drain", drain_seconds=1.3), True),
    ):
        found: dict[str, list[Trial]] = {"vendor": [], "mpsd": []}
        for _ in range(stage.trials(TRIALS)):
            for system, end in ((stage.vendor, theirs), (stage.mpsd, ours)):
                if end is not None:
                    found[system.name].append(_trial(system, work, end))
        stage.keep(what, {name: [asdict(trial) for trial in each] for name, each in found.items()})
        good = sum(trial.co_runner == "went on" for trial in found["mpsd"])
        total = len(found["mpsd"])
        stage.add(
            f"{what}: co-runner goes on",
            vendor=_cell(found["vendor"]),
            mpsd=_cell(found["mpsd"]),
            goal=figures.of(total, total) if is_goal else "",
            met=good == total if is_goal else None,
            remark=", ".join(dict.fromkeys(trial.told for trial in found["mpsd"] if trial.told)),
        )


def _signal(number: signal.Signals) -> End:
    def end(system: System, client: Client) -> str:
        client.signal(number)
        client.wait(trials.DEATH_SECONDS)
        return ""

    return end


def _stop(**how: object) -> End:
    def end(system: System, client: Client) -> str:
        with Mpsd(system.pipe / "mpsd.sock", program="compare") as mpsd:
            done = mpsd.ask(calls.client_stop(client.pid, **how)).processes  # type: ignore[arg-type]
        return "; ".join(each.why or "+".join(each.steps) for each in done)

    return end


def _trial(system: System, work: tuple[str, ...], end: End) -> Trial:
    other = trials.started(system, *trials.NEVER_ENDING)
    doomed = system.client(*work)
    doomed.wait_for("fault" if work is ENDLESS else "ready", trials.READY_SECONDS)
    time.sleep(IN_FLIGHT_SECONDS)
    since = time.monotonic_ns()
    told = end(system, doomed)
    took_ms = (time.monotonic_ns() - since) / 1e6
    time.sleep(SETTLE_SECONDS)
    tick = other.wait_for("tick", trials.DEATH_SECONDS, time.monotonic_ns())
    fate = "went on" if tick and other.is_running else other.fate
    stall = trials.stall(other, since)
    end_all([other, doomed])
    for client in (other, doomed):
        system.clients.remove(client)
    return Trial(fate, stall, took_ms, told)


def _cell(found: list[Trial]) -> str:
    if not found:
        return figures.NONE
    good = sum(trial.co_runner == "went on" for trial in found)
    fates = [trial.co_runner for trial in found if trial.co_runner != "went on"]
    stalls = [trial.stall_ms for trial in found if trial.stall_ms is not None]
    words = [figures.of(good, len(found)), *dict.fromkeys(fates)]
    words.append(f"{figures.ms(figures.median([trial.took_ms for trial in found]))} until it had ended")
    return ", ".join([*words, f"worst stall {figures.ms(max(stalls))}"] if stalls else words)
