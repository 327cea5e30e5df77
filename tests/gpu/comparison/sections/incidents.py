"""Every class of fault, repeated, among three innocents: which clients die, which one is named, how soon, what is left
afterwards.

Two newcomers in each trial: one at the launch, before any source can report it, one while the domain recovers. mpsd: one
innocent shares the culprit's domain, two are of other users and so in other domains, where they run through all trials. Vendor:
there is one server, so all are its clients, new in each trial.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tests.gpu.comparison import figures, trials
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 10
OTHER_UIDS = (1000, 1001)
NAMED_SECONDS = 3.0  # a core dump takes a second where the machine is slow
GOES_ON_SECONDS = 3.0
HEALTHY_SECONDS = 12.0
SPARE_SECONDS = 8.0
LATE_SECONDS = 0.15  # after the launch: while the GPU and the domain recover
LATE_GOAL_MS = 200.0
MMU_GOAL_MS = 5.0
SETTLE_SECONDS = 0.3  # what a fault does to others it does within this time

MMU, SM, HOST, NONE = "mmu", "sm", "host", "none"


@dataclass(frozen=True, slots=True)
class Kind:
    """mode: of faulter. harmless: with mpsd no client suffers from it, and none is named."""

    mode: str
    fault_class: str
    harmless: bool = False
    arguments: tuple[str, ...] = ()


KINDS = (
    Kind("oob_write", MMU),
    Kind("trap", SM),
    Kind("killed", HOST, harmless=True),
    Kind("array_null_write", MMU, harmless=True, arguments=("--after", "0.05")),
    Kind("oob_read", MMU),
    Kind("misaligned", SM),
    Kind("oob_atomic", MMU),
    Kind("null_write", MMU),
    Kind("near_null_write", MMU),
    Kind("use_after_free", MMU),
    Kind("ro_write", MMU),
    Kind("copy", MMU),
    Kind("assert_fail", SM),
    Kind("illegal_instruction", SM),
    Kind("stack_overflow", SM),
    Kind("managed_oob", MMU),
    Kind("managed_freed", MMU),
    Kind("array_null_read", MMU, harmless=True),  # at once
    Kind("out_of_memory", NONE, harmless=True),
)


@dataclass(slots=True)
class Trial:
    """One fault. named: whether mpsd convicted the culprit's pid; None: it convicted no client."""

    mode: str
    culprit: str = ""
    same_domain: str = ""
    others: tuple[str, ...] = ()
    named: bool | None = None
    named_ms: float | None = None
    confidence: str = ""
    usable_ms: float | None = None
    late: str = ""
    late_ms: float | None = None
    stall_ms: float | None = None
    healthy_ms: float | None = None
    remark: str = ""


@dataclass(slots=True)
class Found:
    trials: list[Trial] = field(default_factory=list)

    def times(self, attribute: str) -> list[float]:
        return [value for trial in self.trials if (value := getattr(trial, attribute)) is not None]


def run_memory(stage: Stage) -> None:
    _run(stage, [kind for kind in KINDS if kind.fault_class == MMU])


def run_others(stage: Stage) -> None:
    _run(stage, [kind for kind in KINDS if kind.fault_class != MMU])


def _run(stage: Stage, kinds: Sequence[Kind]) -> None:
    stage.vendor.renew()
    stage.mpsd.renew()
    listener = Listener(stage.mpsd)
    others = [_innocent(stage.mpsd, uid) for uid in OTHER_UIDS]
    for kind in kinds:
        found = {"vendor": Found(), "mpsd": Found()}
        try:
            for _ in range(stage.trials(TRIALS)):
                for place, uid in enumerate(OTHER_UIDS):
                    if not others[place].is_running:
                        others[place] = _innocent(stage.mpsd, uid)
                found["mpsd"].trials.append(_trial(stage, stage.mpsd, kind, others, listener))
                found["vendor"].trials.append(_trial(stage, stage.vendor, kind, (), None))
        finally:
            if found["mpsd"].trials:
                _report(stage, kind, found["vendor"], found["mpsd"])
    listener.close()


def _innocent(system: System, uid: int) -> Client:
    before = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    client = system.client(*trials.NEVER_ENDING, before=before)
    if not client.wait_for("ready", trials.READY_SECONDS):
        raise SystemFailed(f"an innocent of user {uid} did not start: {client.fate}")
    return client


def _trial(stage: Stage, system: System, kind: Kind, others: Sequence[Client], listener: Listener | None) -> Trial:
    trial = Trial(kind.mode)
    kept = list(system.clients)
    dumps = listener.dump_variables() if listener is not None and kind.fault_class == SM else {}
    near = _start(system, dumps, *trials.NEVER_ENDING)
    if listener is not None and not listener.wait_for_spare(SPARE_SECONDS):  # another domain than that which is to fault
        trial.remark = "no spare yet"
    beside = others or [_start(system, {}, *trials.NEVER_ENDING) for _ in OTHER_UIDS]
    culprit = _start(system, dumps, "faulter", kind.mode, *kind.arguments, ready=False)
    launched = culprit.wait_for("fault", trials.READY_SECONDS)
    if launched is None:
        raise SystemFailed(f"{system.name}: {kind.mode}: the culprit did nothing: {culprit.fate} {culprit.other[:1]}")
    launched_ns = int(launched["monotonic_ns"])
    newcomer = system.client("counter", "--seconds", "0.1")
    time.sleep(LATE_SECONDS)
    late = system.client("counter", "--seconds", "0.1")
    trial.usable_ms = trials.usable(system, launched_ns, [newcomer, late])
    late.wait(trials.DEATH_SECONDS)
    trial.late, trial.late_ms = late.fate, next((float(ready["first_kernel_ms"]) for ready in late.events("ready")), None)
    if listener is not None:
        _take_verdict(trial, kind, culprit, launched_ns, listener)
    culprit.wait(trials.DEATH_SECONDS)
    time.sleep(SETTLE_SECONDS)
    since = time.monotonic_ns()
    trial.others = tuple(_went_on(each, since) for each in beside)
    trial.same_domain = _went_on(near, since)
    trial.culprit = culprit.fate
    stalls = [each for each in (trials.stall(client, launched_ns) for client in beside) if each is not None]
    trial.stall_ms = max(stalls, default=None)
    ended = [client for client in system.clients if client not in kept]
    end_all(ended)
    system.clients[:] = kept
    trial.healthy_ms = _healthy(system, launched_ns)
    return trial


def _start(system: System, more: dict[str, str], program: str, *arguments: str, ready: bool = True) -> Client:
    """A vendor daemon that is still busy with the last fault is given time."""
    end = time.monotonic() + trials.READY_SECONDS
    while True:
        argv = [str(system.programs / program), *arguments, "--json", "--start-ns", "{start_ns}"]
        client = system.spawn(argv, {**system.environment(), **more})
        if client.wait_for("ready", trials.READY_SECONDS):
            return client
        if time.monotonic() > end:
            raise SystemFailed(f"{system.name}: {program} did not start: {client.fate}")
        time.sleep(0.1)


def _take_verdict(trial: Trial, kind: Kind, culprit: Client, launched_ns: int, listener: Listener) -> None:
    """Check that mpsd names no client after a harmless fault; the check takes only a moment."""
    verdict = listener.culprit_since(launched_ns, SETTLE_SECONDS if kind.harmless else NAMED_SECONDS)
    if verdict is not None:
        trial.named = verdict.pid == culprit.pid
        trial.named_ms = (verdict.heard_ns - launched_ns) / 1e6
        trial.confidence = verdict.confidence
        if not trial.named:
            trial.remark = f"fault {verdict.number} named pid {verdict.pid}, the culprit was {culprit.pid}"


def _went_on(client: Client, since_ns: int) -> str:
    """Going on means that it counts."""
    tick = client.wait_for("tick", GOES_ON_SECONDS, since_ns)
    return "went on" if tick and client.is_running else client.fate


def _healthy(system: System, launched_ns: int) -> float | None:
    """Milliseconds from the launch until every server is ACTIVE, by the vendor's own words."""
    end = time.monotonic() + HEALTHY_SECONDS
    while time.monotonic() < end:
        if all(server.status == "ACTIVE" for server in system.servers()):
            return (time.monotonic_ns() - launched_ns) / 1e6
        time.sleep(0.05)
    return None


def _report(stage: Stage, kind: Kind, vendor: Found, mpsd: Found) -> None:
    stage.keep(kind.mode, {"vendor": [asdict(t) for t in vendor.trials], "mpsd": [asdict(t) for t in mpsd.trials]})
    total = len(mpsd.trials)
    spared = sum(fate == "went on" for trial in mpsd.trials for fate in trial.others)
    near = sum(trial.same_domain == "went on" for trial in mpsd.trials)
    wrong = sum(trial.named is False for trial in mpsd.trials)
    named = sum(trial.named is True for trial in mpsd.trials)
    late = mpsd.times("late_ms")
    goal = f"same domain {total}" if kind.harmless else f"named {total}, late client {LATE_GOAL_MS:.0f} ms"
    met = spared == 2 * total and not wrong and (near == total if kind.harmless else named == total)
    if not kind.harmless:
        met = met and len(late) == total and max(late) <= LATE_GOAL_MS
    if kind.fault_class == MMU and not kind.harmless:
        met = met and max(mpsd.times("named_ms"), default=math.inf) <= MMU_GOAL_MS
    stage.add(
        kind.mode,
        vendor=_vendor_cell(vendor),
        mpsd="; ".join(
            (
                f"same domain {near}, others {spared} of {2 * total} went on",
                _named_cell(mpsd, named, wrong),
                _times_cell(mpsd),
            )
        ),
        goal=f"others {2 * total}, {goal}",
        met=met,
        remark=_remark(mpsd),
    )


def _vendor_cell(found: Found) -> str:
    fates = [fate for trial in found.trials for fate in (trial.same_domain, *trial.others)]
    return f"{fates.count('went on')} of {len(fates)} went on; {_times_cell(found)}"


def _named_cell(found: Found, named: int, wrong: int) -> str:
    times = found.times("named_ms")
    took = f" after {figures.ms(figures.median(times))}, at most {figures.ms(max(times))}" if times else ""
    return f"named {figures.of(named, len(found.trials))}{took}, wrongly {wrong}"


def _times_cell(found: Found) -> str:
    """Medians, and the worst stall."""
    late = found.times("late_ms")
    return (
        f"a client runs {figures.ms(figures.median(found.times('usable_ms')))} after the launch, one that comes during recovery"
        f" {figures.of(len(late), len(found.trials))} in {figures.ms(figures.median(late))}, "
        f"stall {figures.ms(max(found.times('stall_ms'), default=None))}, "
        f"all well after {figures.ms(figures.median(found.times('healthy_ms')))}"
    )


def _remark(found: Found) -> str:
    fates = [trial.culprit for trial in found.trials]
    words = [f"culprit: {fates.count(fate)} {fate}" for fate in dict.fromkeys(fates)]
    kinds = [trial.confidence for trial in found.trials if trial.confidence]
    words += [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return "; ".join([*words, *dict.fromkeys(trial.remark for trial in found.trials if trial.remark)])
