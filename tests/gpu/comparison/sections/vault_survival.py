"""A program whose state is in an arena, ended in the middle of its work in every possible way; a new one continues, and its
result is that of an undisturbed run, bit for bit. In every other trial mpsd itself is killed too."""

import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import Protocol

from tests.gpu.comparison import figures, trials, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 5
STEPS, STEP_MS, DISTURBED_AT = 400, 3, 30
FAULT_AT = 150  # a step; mpsd may be killed between the two
FAULT_AFTER = "0.2"  # seconds; likewise
ARENA = "survival"
DEATH_SECONDS = 8.0
KILLED, FAULTED, HURT, DESERTED = WAYS = ("kill -9", "its own fault", "a co-runner's fault", "its MPS server's death")


@dataclass(frozen=True, slots=True)
class Trial:
    """death: how the first process ended.  back_ms: from its end until the second one had the arena, its start included.
    starts: how many had to be started for that.  why: the trial could not be done."""

    way: str
    is_mpsd_killed: bool
    death: str = ""
    back_ms: float | None = None
    open_ms: float | None = None
    is_same: bool = False
    starts: int = 0
    why: str = ""


class Work(Protocol):
    """A program that can be disturbed. It reports "ready" when it has everything, and "end" with its result."""

    def first(self, faults: bool) -> Client:
        """Has begun, in a new arena; it faults by itself, if it is to."""

    def reached(self, client: Client) -> bool:
        """Return whether it is working."""

    def fault(self, client: Client) -> None:
        """Now, where it does not by itself."""

    def second(self) -> Client:
        """Goes on in the arena."""

    def is_same(self, client: Client) -> bool:
        """Whether it went on, and its result is the undisturbed one.  Waits for it."""

    def open_ms(self, client: Client) -> float | None: ...


class Steps:
    """The C program: arena_client work.  Guards what the undisturbed run came to."""

    def __init__(self, stage: Stage) -> None:
        self._system = stage.mpsd
        size = min(64 << 20, vault.unit(stage) * 4)
        self._arguments = ("--bytes", str(size), "--steps", str(STEPS), "--step-ms", str(STEP_MS))
        end = vault.run(self._system, "end", "work", "--arena", "undisturbed", *self._arguments)
        if end["wrong"]:
            raise SystemFailed("even undisturbed, the weights were wrong")
        self._digest = str(end["digest"])
        vault.remove(self._system, "undisturbed")

    def first(self, faults: bool) -> Client:
        more = ("--fault-at", str(FAULT_AT)) if faults else ()
        return vault.start(self._system, "work", "--arena", ARENA, *self._arguments, *more)

    def reached(self, client: Client) -> bool:
        steps = client.events("step")
        return bool(steps) and steps[-1]["step"] >= DISTURBED_AT

    def fault(self, client: Client) -> None:
        """It does by itself."""

    def second(self) -> Client:
        return vault.start(self._system, "work", "--arena", ARENA, *self._arguments)

    def is_same(self, client: Client) -> bool:
        ready, end = vault.said(client, "ready"), vault.said(client, "end")
        went_on = ready["is_adopted"] and ready["step"] >= DISTURBED_AT
        return bool(went_on and end["digest"] == self._digest and end["wrong"] == 0)

    def open_ms(self, client: Client) -> float | None:
        return float(vault.said(client, "ready")["open_ms"])


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    disturb(stage, "C program", Steps(stage), stage.trials(TRIALS))


def disturb(stage: Stage, what: str, work: Work, total: int) -> None:
    """In each way, so often."""
    for way in WAYS:
        found: list[Trial] = []
        try:
            for number in range(total):
                found.append(_attempt(stage.mpsd, work, way, is_mpsd_killed=number % 2 == 1))
        finally:
            _report(stage, f"{what}: {way}", found, total)


def _attempt(system: System, work: Work, way: str, is_mpsd_killed: bool) -> Trial:
    """One that cannot be done is a trial that failed; the next begins with a new daemon."""
    try:
        return _trial(system, work, way, is_mpsd_killed)
    except SystemFailed as error:
        end_all(system.clients)
        system.clients.clear()
        system.renew()
        system.warm(trials.READY_SECONDS)
        return Trial(way, is_mpsd_killed, why=str(error))


def _trial(system: System, work: Work, way: str, is_mpsd_killed: bool) -> Trial:
    first = work.first(faults=way == FAULTED)
    vault.said(first, "ready")
    server = trials.server_of(system, first) if way == DESERTED else 0
    _wait_until(first, work)
    if way == HURT:
        trials.started(system, "faulter", "oob_write", "--after", FAULT_AFTER)
    if is_mpsd_killed:
        vault.kill_mpsd(system)
    if way == KILLED:
        first.signal(signal.SIGKILL)
    elif way == FAULTED:
        work.fault(first)
    elif server:
        os.kill(server, signal.SIGKILL)
    if first.wait(DEATH_SECONDS) is None:
        first.signal(signal.SIGKILL)  # some ends leave it hanging in a call of CUDA
        first.wait(DEATH_SECONDS)
    died_ns = time.monotonic_ns()
    if first.events("end"):
        raise SystemFailed(f"{way}: the work was done before it was disturbed")
    if is_mpsd_killed:
        system.start()
    second, starts = vault.until_said(system, work.second, "ready")
    is_same = work.is_same(second)
    back_ms = (vault.said(second, "ready")["monotonic_ns"] - died_ns) / 1e6
    trial = Trial(way, is_mpsd_killed, first.fate, back_ms, work.open_ms(second), is_same, starts)
    second.wait(vault.EVENT_SECONDS)
    end_all(system.clients)
    system.clients.clear()
    vault.remove(system, ARENA)
    return trial


def _wait_until(client: Client, work: Work) -> None:
    end = time.monotonic() + vault.EVENT_SECONDS
    while not work.reached(client):
        if not client.is_running or time.monotonic() > end:
            raise SystemFailed(f"the middle of its work was never reached: {client.fate}")
        time.sleep(0.002)


def _report(stage: Stage, what: str, found: list[Trial], total: int) -> None:
    stage.keep(what, [asdict(trial) for trial in found])
    same = sum(trial.is_same for trial in found)
    back = [trial.back_ms for trial in found if trial.back_ms is not None]
    opened = [trial.open_ms for trial in found if trial.open_ms is not None]
    deaths = dict.fromkeys(trial.death or trial.why for trial in found)
    again = sum(trial.starts > 1 for trial in found)
    stage.add(
        f"{what}: a new process goes on, the result is the same",
        mpsd=figures.of(same, total),
        goal=figures.of(total, total),
        met=same == total,
        remark=(
            f"back after {figures.ms(figures.median(back))}, worst {figures.ms(max(back, default=None))}; arena open "
            f"{figures.ms(figures.median(opened))}; mpsd killed in {sum(t.is_mpsd_killed for t in found)}; "
            f"started more than once in {again}; {', '.join(deaths)}"
        ),
    )
