"""Make one trial of containment: four clients share a server, and one of them faults.

    train, matmul (PyTorch), long (kernels of half a second)    work until they are released after the fault, and report their
                                                                results
    the culprit                                                 faults when its input ends

A co-runner is exact if it ran to its own end with the results of an undisturbed run.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.course import Moment, in_words, of_events, of_reports, reports_of
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

CONFIG = (
    '[sentinel]\nmode = "on"\nself_test = false\n[faults]\nquarantine = "off"\ncrash_pause_max = 0.0\nculprit_seconds = 0.3\n'
    '[log]\nlevel = "debug"\n'  # the sentinel's reports
)
GPU_TESTS = Path(__file__).resolve().parents[1]
TORCH_PROGRAM = GPU_TESTS / "torch/co_runner.py"
OURS = GPU_TESTS / "sm_culprit.py"
CO_RUNNERS = ("train", "matmul", "long")
LONG = ("counter", "--kernel-us", "500000", "--ms", "1", "--seconds", "60", "--until-release")
SHORT = ("counter", "--ms", "20", "--seconds", "60", "--until-release")
WIDE = (*SHORT, "--grid", "132")  # on all SMs of an H100, with room for a culprit's block beside each
READY_SECONDS, FAULT_SECONDS, END_SECONDS, SPARE_SECONDS = 25.0, 5.0, 4.0, 6.0
GOES_ON_SECONDS = 1.0  # after the fault, before the co-runners are released
NOTICE_SECONDS = 0.4  # until an exception is reported as contained
NEWCOMER_SECONDS = 6.0
LINGER = "0.05"  # from the culprit's own error to its end
SHIM = GPU_TESTS.parents[1] / "clients/shim/libmpsd.so"


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of fault. is_ours: of sm_culprit.py, not of faulter."""

    mode: str
    fault_class: str
    is_ours: bool = False


@dataclass(slots=True)
class Trial:
    """One fault. Times in milliseconds: stall of each co-runner; event from the launch to the driver's event; resumed from that
    event until the GPU continued; contained and named from that event until a subscriber of mpsd heard it; failed and ended
    from that event until the culprit had its own error, and until its process had ended; newcomer from its start to its first
    kernel.
    drained: mpsd took the GPU out of use. course: all that happened, in one line. why: the reason for which no trial was made.
    """

    mode: str
    system: str
    why: str = ""
    ends: dict[str, str] = field(default_factory=dict)
    stall: dict[str, float] = field(default_factory=dict)
    culprit: str = ""
    event: float | None = None
    resumed: float | None = None
    contained: float | None = None
    named: float | None = None
    failed: float | None = None
    ended: float | None = None
    is_right: bool | None = None
    confidence: str = ""
    newcomer: float | None = None
    newcomer_fate: str = ""
    promoted: int = 0
    number: int = 0
    culprit_pid: int = 0
    event_ns: int = 0
    launched_ns: int = 0
    over_ns: int = 0
    has_torch: bool = False
    has_shim: bool = False
    drained: bool = False
    seconds: float = 0.0
    moments: list[Moment] = field(default_factory=list)
    course: str = ""

    def judge(self, listener: Listener) -> None:
        """Note the culprit that mpsd has named; after a trap it names one seconds later."""
        heard = [each for each in listener.heard(self.launched_ns) if each[0] < self.over_ns]
        self.course = in_words([*self.moments, *of_events(heard)], self.launched_ns)
        verdict = listener.verdict_on(self.number)
        if verdict is not None:
            self.is_right, self.confidence = verdict.pid == self.culprit_pid, verdict.confidence
            self.named = (verdict.heard_ns - self.event_ns) / 1e6

    @property
    def exact(self) -> int:
        return sum(each == "exact" for each in self.ends.values())

    @property
    def is_contained(self) -> bool:
        return bool(self.ends) and self.exact == len(self.ends)


@dataclass(slots=True)
class Bench:
    """What trials share. losses: of an undisturbed run of the training. user: what changes the user of C programs.
    without_torch: counters take the place of PyTorch."""

    stage: Stage
    losses: list[float] = field(default_factory=list)
    without_torch: bool = False  # in all trials
    user: Sequence[str] = ()

    def start_torch(self, system: System) -> dict[str, Client]:
        """Start PyTorch's co-runners as far as they go without a GPU; none without PyTorch."""
        python = self.stage.options.torch_python
        if python is None or self.stage.options.is_simulated or self.without_torch:
            return {}
        return {kind: system.spawn([str(python), str(TORCH_PROGRAM), kind], None, True) for kind in CO_RUNNERS[:2]}

    def start_co_runners(self, system: System, prepared: dict[str, Client]) -> dict[str, Client]:
        """Let all of them make their contexts at the same time."""
        for each in prepared.values():
            each.tell("go")
        missing = [kind for kind in CO_RUNNERS if kind not in prepared]
        words = {"train": SHORT, "matmul": WIDE, "long": LONG}
        return prepared | {kind: system.client(*words[kind], before=self.user, has_input=True) for kind in missing}

    def culprit(self, system: System, kind: Kind, has_shim: bool) -> Client:
        before = [*self.user, "env", f"LD_PRELOAD={SHIM}"] if has_shim else self.user
        if not kind.is_ours:
            return system.client("faulter", kind.mode, "--gate", "--linger", LINGER, before=before, has_input=True)
        python = str(self.stage.options.python)
        return system.spawn([*before, python, str(OURS), kind.mode, "--gate", "--linger", LINGER], None, True)

    def end_of(self, kind: str, client: Client, until: float) -> str:
        """Return "exact", or how a co-runner ended."""
        client.wait(max(0.05, until - time.monotonic()))
        ends = client.events("end")
        if not ends:
            return "hangs" if client.is_running else client.fate
        end = ends[0]
        if "count" in end:
            is_right = end["count"] == end["kernels"]
        elif kind == "train":
            losses = end["losses"]
            is_right = 0 < len(losses) <= len(self.losses) and losses == self.losses[: len(losses)]
        else:
            is_right = end["wrong"] == 0
        return "exact" if is_right else "wrong"


def undisturbed_losses(bench: Bench, system: System, seconds: float) -> list[float]:
    """Return the losses of a training that runs so long, alone; none without PyTorch."""
    prepared = bench.start_torch(system)
    if not prepared:
        return []
    for each in prepared.values():
        each.wait_for("imported", READY_SECONDS)
    train = prepared["train"]
    end_all([prepared["matmul"]])
    train.tell("go")
    if not train.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"{system.name}: the training does not start: {train.fate} {train.events('error')}")
    time.sleep(seconds)
    train.release()
    end = train.wait_for("end", END_SECONDS)
    if end is None:
        raise SystemFailed(f"{system.name}: the training does not end: {train.fate}")
    end_all([train])
    system.clients[:] = [each for each in system.clients if each not in prepared.values()]
    losses: list[float] = end["losses"]
    return losses


def run_trial(
    bench: Bench,
    system: System,
    kind: Kind,
    prepared: dict[str, Client],
    listener: Listener | None,
    has_shim: bool = False,
) -> Trial:
    """Make one trial; all its clients are gone afterwards.  has_shim: the culprit runs under the shim."""
    began = time.monotonic()
    trial = Trial(kind.mode, system.name, has_torch=bool(prepared), has_shim=has_shim)
    kept = [each for each in system.clients if each not in prepared.values()]
    try:
        _run(bench, system, kind, prepared, listener, trial)
    except (SystemFailed, OSError) as error:
        trial.why = str(error)[:200]
    mine = [each for each in system.clients if each not in kept and (each in prepared.values() or _is_new(each, began))]
    end_all(mine, 0.5)
    system.clients[:] = [each for each in system.clients if each not in mine]
    if listener is not None and listener.events("gpu.drained", int(began * 1e9)):  # it would take no client from now on
        with Mpsd(system.pipe / "mpsd.sock", program="compare") as mpsd:
            mpsd.ask(calls.blame_pardon(str(listener.events("gpu.drained")[-1].facts["gpu"])))
        trial.drained = True
    trial.seconds, trial.over_ns = time.monotonic() - began, time.monotonic_ns()
    return trial


def _is_new(client: Client, began: float) -> bool:
    return client.started_ns >= began * 1e9 and client.argv[1:2] != [str(TORCH_PROGRAM)]


def _run(
    bench: Bench, system: System, kind: Kind, prepared: dict[str, Client], listener: Listener | None, trial: Trial
) -> None:
    others, culprit = _set_up(bench, system, kind, prepared, listener, trial.has_shim)
    since_ns = launch(culprit)
    contained = listener.first("domain.contained", since_ns, NOTICE_SECONDS) if listener else None
    if listener is None:
        time.sleep(NOTICE_SECONDS)
    newcomer = system.client("counter", "--seconds", "0.05", before=bench.user)
    time.sleep(max(0.0, since_ns / 1e9 + GOES_ON_SECONDS - time.monotonic()))
    for each in others.values():
        each.release()
    until = time.monotonic() + END_SECONDS
    trial.ends = {name: bench.end_of(name, each, until) for name, each in others.items()}
    trial.stall = {name: each for name, client in others.items() if (each := _stall(client, since_ns)) is not None}
    newcomer.wait(NEWCOMER_SECONDS)
    trial.newcomer_fate = newcomer.fate
    trial.newcomer = next((float(each["first_kernel_ms"]) for each in newcomer.events("ready")), None)
    trial.launched_ns, trial.culprit_pid = since_ns, culprit.pid
    reports = reports_of(system.log / "mpsd.log", since_ns) if listener else []
    _measure(trial, reports, contained[0] if contained else None, culprit)
    opened = listener.first("fault.opened", since_ns, 0.0) if listener else None
    trial.number = int(opened[1].facts["number"]) if opened else 0
    trial.promoted = len(listener.events("service.promoted", since_ns)) if listener else 0


def _set_up(
    bench: Bench,
    system: System,
    kind: Kind,
    prepared: dict[str, Client],
    listener: Listener | None,
    has_shim: bool,
) -> tuple[dict[str, Client], Client]:
    """Return the co-runners and the culprit, all of them ready and in one server.  Raise SystemFailed."""
    if listener is not None:
        listener.wait_for_spare(SPARE_SECONDS)
    others = bench.start_co_runners(system, prepared)
    culprit = bench.culprit(system, kind, has_shim)
    for name, each in {**others, "culprit": culprit}.items():
        if not each.wait_for("ready", READY_SECONDS):
            raise SystemFailed(f"{name} did not start: {each.fate} {each.events('error')[:1]}")
    if listener is not None and len(homes := _domains(system, [culprit, *others.values()])) != 1:
        raise SystemFailed(f"the clients were in {sorted(homes)}")
    if not others["long"].wait_for("tick", FAULT_SECONDS):  # it knows how long its kernels take
        raise SystemFailed("the long kernels do not end")
    return others, culprit


def launch(culprit: Client) -> int:
    """Let the culprit fault; return when it launched its kernel.  Raise SystemFailed."""
    culprit.release()
    launched = culprit.wait_for("fault", FAULT_SECONDS)
    if launched is None:
        raise SystemFailed(f"the culprit did nothing: {culprit.fate}")
    return int(launched["monotonic_ns"])


def _measure(trial: Trial, reports: Sequence[dict[str, Any]], closed_ns: int | None, culprit: Client) -> None:
    """Note the times of the trial, after the driver's event where there was one."""
    times = {each["kind"]: each["at_ns"] for each in reversed(reports)}  # the first report of each kind
    zero_ns = trial.event_ns = times.get("FAULT", trial.launched_ns)
    results = culprit.events("result")
    trial.culprit = str(results[0]["code"]) if results else "hangs" if culprit.is_running else culprit.fate

    def since(at_ns: int | None) -> float | None:
        return (at_ns - zero_ns) / 1e6 if at_ns else None

    trial.failed = since(int(results[0]["monotonic_ns"])) if results else None
    trial.ended = since(culprit.ended_ns)
    trial.moments = of_reports(reports)
    if results:
        trial.moments.append((int(results[0]["monotonic_ns"]), f"own result {trial.culprit}"))
    if culprit.ended_ns:
        trial.moments.append((culprit.ended_ns, "culprit ended"))
    if "FAULT" in times:
        trial.event = (zero_ns - trial.launched_ns) / 1e6
        trial.resumed, trial.contained = since(times.get("CONTAINED")), since(closed_ns)


def _domains(system: System, clients: Sequence[Client]) -> set[str]:
    with Mpsd(system.pipe / "mpsd.sock", program="compare") as mpsd:
        found = {each.pid: each.domain for each in mpsd.pages(calls.client_list())}
    return {found.get(each.pid, f"no domain ({each.pid})") for each in clients}


def _stall(client: Client, since_ns: int) -> float | None:
    """Return its longest step, less its longest one before the fault if it reported that."""
    ends = client.events("end")
    if not ends:
        return None
    before = [float(each["worst_ms"]) for each in client.events("tick") if each["monotonic_ns"] < since_ns]
    is_long = any(word == LONG[2] for word in client.argv)
    return max(0.0, float(ends[0]["worst_ms"]) - (max(before, default=0.0) if is_long else 0.0))
