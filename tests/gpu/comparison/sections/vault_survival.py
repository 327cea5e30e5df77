"""A program whose state is in an arena, ended in the middle of its work in every way there is; a new one goes on, and its
result is that of a run that nobody disturbed, bit for bit.  In every other trial mpsd itself is killed too.
"""

import os
import signal
import time
from dataclasses import asdict, dataclass

from tests.gpu.comparison import figures, trials, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 5
STEPS, STEP_MS, DISTURBED_AT = 400, 3, 30
FAULT_AT = 150  # a step; mpsd may be killed between the two
FAULT_AFTER = "0.2"  # seconds
ARENA = "survival"
DEATH_SECONDS = 8.0
WAYS = ("kill -9", "its own fault", "a co-runner's fault", "its MPS server's death")


@dataclass(frozen=True, slots=True)
class Trial:
    """death: how the first process ended.  back_ms: from its end to the second one's first step, its start included."""

    way: str
    is_mpsd_killed: bool
    death: str
    at_step: int
    back_ms: float
    open_ms: float
    is_same: bool


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    size = min(64 << 20, vault.unit(stage) * 4)
    work = _Work(stage.mpsd, ("--bytes", str(size), "--steps", str(STEPS), "--step-ms", str(STEP_MS)))
    for way in WAYS:
        found: list[Trial] = []
        try:
            for number in range(stage.trials(TRIALS)):
                found.append(_trial(stage, work, way, is_mpsd_killed=number % 2 == 1))
        finally:
            report(stage, f"C program: {way}", found, stage.trials(TRIALS))


class _Work:
    """Guards what the undisturbed run came to."""

    def __init__(self, system: System, arguments: tuple[str, ...]) -> None:
        self.system, self._arguments = system, arguments
        end = vault.run(system, "end", "work", "--arena", "undisturbed", *arguments)
        if end["wrong"]:
            raise SystemFailed("even undisturbed, the weights were wrong")
        self.digest = str(end["digest"])
        vault.remove(system, "undisturbed")

    def start(self, *more: str) -> Client:
        return vault.start(self.system, "work", "--arena", ARENA, *self._arguments, *more)

    def is_same(self, client: Client) -> bool:
        end = vault.said(client, "end")
        return end["digest"] == self.digest and end["wrong"] == 0


def _trial(stage: Stage, work: _Work, way: str, is_mpsd_killed: bool) -> Trial:
    system = work.system
    first = work.start(*(("--fault-at", str(FAULT_AT)) if way == WAYS[1] else ()))
    vault.said(first, "ready")
    culprit = trials.started(system, "faulter", "oob_write", "--after", FAULT_AFTER) if way == WAYS[2] else None
    server = server_of(system, first) if way == WAYS[3] else 0
    _wait_for_step(first, DISTURBED_AT)
    if is_mpsd_killed:
        vault.kill_mpsd(system)
    if way == WAYS[0]:
        first.signal(signal.SIGKILL)
    elif server:
        os.kill(server, signal.SIGKILL)
    if first.wait(DEATH_SECONDS) is None:
        first.signal(signal.SIGKILL)  # some ends leave it hanging in a call of CUDA
        first.wait(DEATH_SECONDS)
    died_ns = time.monotonic_ns()
    steps = first.events("step")
    if first.events("end"):
        raise SystemFailed(f"{way}: the work was done before it could be disturbed")
    if is_mpsd_killed:
        system.start()
    second = work.start()
    ready = vault.said(second, "ready")
    is_same = work.is_same(second) and ready["is_adopted"] and ready["step"] >= DISTURBED_AT
    back_ms = (ready["monotonic_ns"] - died_ns) / 1e6
    trial = Trial(way, is_mpsd_killed, first.fate, len(steps), back_ms, float(ready["open_ms"]), bool(is_same))
    second.wait(vault.EVENT_SECONDS)
    end_all([client for client in (culprit,) if client])
    system.clients.clear()
    vault.remove(system, ARENA)
    return trial


def _wait_for_step(client: Client, number: int) -> None:
    end = time.monotonic() + vault.EVENT_SECONDS
    while client.is_running and time.monotonic() < end:
        steps = client.events("step")
        if steps and steps[-1]["step"] >= number:
            return
        time.sleep(0.002)
    raise SystemFailed(f"step {number} was never reached: {client.fate}")


def server_of(system: System, client: Client) -> int:
    """The MPS server that serves it; it is listed a moment after it came."""
    end = time.monotonic() + trials.READY_SECONDS
    while time.monotonic() < end:
        for server in system.servers():
            if client.pid in server.clients:
                return server.pid
        time.sleep(0.02)
    raise SystemFailed(f"no server has pid {client.pid}")


def report(stage: Stage, what: str, found: list[Trial], total: int) -> None:
    stage.keep(what, [asdict(trial) for trial in found])
    same = sum(trial.is_same for trial in found)
    back = [trial.back_ms for trial in found]
    opened = [trial.open_ms for trial in found]
    deaths = dict.fromkeys(trial.death for trial in found)
    stage.add(
        f"{what}: a new process goes on, the result is the same",
        mpsd=figures.of(same, total),
        goal=figures.of(total, total),
        met=same == total,
        remark=(
            f"back after {figures.ms(figures.median(back))}, worst {figures.ms(max(back, default=None))}; arena open "
            f"{figures.ms(figures.median(opened))}; mpsd killed in {sum(t.is_mpsd_killed for t in found)}; {', '.join(deaths)}"
        ),
    )
