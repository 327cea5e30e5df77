"""One client faults: which clients die with it, which continue, and the fate of clients that arrive at that time.

mpsd: a bystander of another user, and so in another domain, runs through all the trials. Two daemons take turns, since each
warms a new spare for over a second after each trial; the trials themselves never overlap. Vendor: there is one server, so the
bystander is one of its clients, new in each trial. In each trial three clients arrive: one as the fault is launched, before any
source can report it, one when its culprit gets the error, and one a fifth of a second later.
"""

import time
from dataclasses import asdict, dataclass, field

from tests.gpu.comparison import figures, trials
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import AS_OTHER, Stage
from tests.gpu.comparison.system import System, SystemFailed
from tests.gpu.comparison.trials import DEATH_SECONDS, NEVER_ENDING, READY_SECONDS

MODES = ("trap", "oob_write")
TRIALS = 20
VENDOR_TRIALS = 5
LATE_SECONDS = 0.2
LISTED_SECONDS = 2.0
SPARE_SECONDS = 8.0


@dataclass(slots=True)
class Trial:
    """What one trial showed."""

    mode: str
    victim: str = ""
    culprit: str = ""
    told_ms: float | None = None  # from the launch until the culprit got its error
    early: str = ""  # the client that arrived at the launch
    newcomer: str = ""  # the one that arrived when the culprit got its error
    newcomer_ms: float | None = None
    late: str = ""  # the one that arrived a little later
    late_ms: float | None = None
    usable_ms: float | None = None  # from the launch until some new client had run a kernel
    bystander: str = ""
    stall_ms: float | None = None
    were_apart: bool = False


@dataclass(slots=True)
class Found:
    trials: list[Trial] = field(default_factory=list)

    def count(self, attribute: str, value: object) -> int:
        return sum(getattr(trial, attribute) == value for trial in self.trials)

    def times(self, attribute: str) -> list[float]:
        return [value for trial in self.trials if (value := getattr(trial, attribute)) is not None]


def run(stage: Stage) -> None:
    stage.vendor.renew()
    stage.mpsd.renew()
    second = stage.another("mpsd2", stage.options.front_end, stage.mpsd)
    second.start()
    bystanders = [(system, _bystander(system)) for system in (stage.mpsd, second)]
    for mode in MODES:
        found = {"vendor": Found(), "mpsd": Found()}
        try:
            for number in range(stage.trials(TRIALS)):
                system, bystander = bystanders[number % len(bystanders)]
                found["mpsd"].trials.append(_trial(stage, system, mode, bystander))
                if number < stage.trials(VENDOR_TRIALS):
                    found["vendor"].trials.append(_trial(stage, stage.vendor, mode, None))
        finally:
            _report(stage, mode, found["vendor"], found["mpsd"])


def _bystander(system: System) -> Client:
    client = system.client(*NEVER_ENDING, before=AS_OTHER)
    if not client.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"the bystander did not start: {client.fate}")
    return client


def _trial(stage: Stage, system: System, mode: str, bystander: Client | None) -> Trial:
    trial = Trial(mode)
    kept = list(system.clients)
    victim = trials.started(system, *NEVER_ENDING)
    beside = bystander or trials.started(system, *NEVER_ENDING)
    if bystander is not None and not system.wait_for_spare(SPARE_SECONDS):
        stage.say("there is no spare yet")
    trial.were_apart = bystander is not None and _are_apart(system, victim, beside)
    culprit = trials.started(system, "faulter", mode)
    launched = culprit.wait_for("fault", READY_SECONDS)
    if launched is None:
        raise SystemFailed(f"the culprit did nothing: {culprit.fate}")
    early = system.client("counter", "--seconds", "0.1")
    result = culprit.wait_for("result", DEATH_SECONDS)
    newcomer = system.client("counter", "--seconds", "0.1")
    launched_ns = int(launched["monotonic_ns"])
    trial.culprit = f"error {result['code']}" if result else culprit.fate
    trial.told_ms = float(result["ms"]) if result else None
    time.sleep(LATE_SECONDS)
    late = system.client("counter", "--seconds", "0.1")
    trial.usable_ms = trials.usable(system, launched_ns, [early, newcomer, late])
    for client in (victim, culprit, early, newcomer, late):
        client.wait(DEATH_SECONDS)
    trial.victim, trial.early, trial.newcomer, trial.late = victim.fate, early.fate, newcomer.fate, late.fate
    trial.newcomer_ms, trial.late_ms = _first_kernel_ms(newcomer), _first_kernel_ms(late)
    _look_at_bystander(trial, beside, time.monotonic_ns())
    trial.stall_ms = trials.stall(beside, launched_ns)
    ended = [client for client in system.clients if client not in kept]
    end_all(ended)
    system.clients[:] = kept
    return trial


def _are_apart(system: System, one: Client, other: Client) -> bool:
    """In different servers, by the control daemon's own lists, which may lag behind on a busy machine."""
    homes: dict[int, int] = {}
    end = time.monotonic() + LISTED_SECONDS
    while not {one.pid, other.pid} <= homes.keys() and time.monotonic() < end:
        homes = {pid: server.pid for server in system.servers() for pid in server.clients}
    return {one.pid, other.pid} <= homes.keys() and homes[one.pid] != homes[other.pid]


def _look_at_bystander(trial: Trial, bystander: Client, since_ns: int) -> None:
    """Going on means that it counted after everybody else's end."""
    tick = bystander.wait_for("tick", 3.0, since_ns)
    trial.bystander = "went on" if tick and bystander.is_running else bystander.fate


def _first_kernel_ms(client: Client) -> float | None:
    ready = client.events("ready")
    return float(ready[0]["first_kernel_ms"]) if ready else None


def _report(stage: Stage, mode: str, vendor: Found, mpsd: Found) -> None:
    stage.keep(mode, {"vendor": [asdict(t) for t in vendor.trials], "mpsd": [asdict(t) for t in mpsd.trials]})
    total, others = len(mpsd.trials), len(vendor.trials)
    wanted = stage.trials(TRIALS)
    for what, attribute, value, has_goal in (
        ("bystander in another domain goes on", "bystander", "went on", True),
        ("... and was in another server", "were_apart", True, True),
        ("client arriving as the culprit is told runs", "newcomer", "done", True),
        ("client arriving 0.2 s later runs", "late", "done", True),
        ("client arriving at the launch runs", "early", "done", False),
    ):
        good = mpsd.count(attribute, value)
        stage.add(
            f"{mode}: {what}",
            vendor=figures.of(vendor.count(attribute, value), others),
            mpsd=figures.of(good, total),
            goal=figures.of(wanted, wanted) if has_goal else "",
            met=good == wanted if has_goal else None,
            remark=_fates(vendor, mpsd, attribute) if isinstance(value, str) else "",
        )
    _report_times(stage, mode, vendor, mpsd)


def _report_times(stage: Stage, mode: str, vendor: Found, mpsd: Found) -> None:
    for what, attribute in (
        ("client arriving as the culprit is told: first kernel, median, slowest", "newcomer_ms"),
        ("client arriving 0.2 s later: first kernel, median, slowest", "late_ms"),
        ("launch until some new client has run, median, slowest", "usable_ms"),
        ("launch until the culprit is told, median, slowest", "told_ms"),
        ("bystander's worst stall", "stall_ms"),
    ):
        cells = []
        for found in (vendor, mpsd):
            times = found.times(attribute)
            slowest = figures.ms(max(times, default=None))
            cells.append(slowest if attribute == "stall_ms" else f"{figures.ms(figures.median(times))}, {slowest}")
        stage.add(f"{mode}: {what}", vendor=cells[0], mpsd=cells[1])
    for what, attribute in (("culprit", "culprit"), ("co-runner in the same server", "victim")):
        stage.add(f"{mode}: {what}", vendor=_tally(vendor, attribute), mpsd=_tally(mpsd, attribute))


def _fates(vendor: Found, mpsd: Found, attribute: str) -> str:
    return f"vendor: {_tally(vendor, attribute)}; mpsd: {_tally(mpsd, attribute)}"


def _tally(found: Found, attribute: str) -> str:
    fates = [str(getattr(trial, attribute)) for trial in found.trials]
    return ", ".join(f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates)) or figures.NONE
