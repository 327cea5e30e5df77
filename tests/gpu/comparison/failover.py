"""A service with a standby, disturbed in every possible way: the common part of the sections about failover.

    fault ──detect──▶ mpsd decides ──fence──▶ promoted ──told──▶ the standby knows ──▶ its first useful step has ended

The process that faults takes the time of the fault from its own clock, right before; the new active takes the last time, right
after. All clocks are CLOCK_MONOTONIC of one machine. detect, fence and promote are mpsd's own figures (service.promoted).
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mpsd_client import Client as Mpsd
from mpsd_client import MpsdError, calls
from mpsd_client._values import Service as ServiceView

from tests.gpu.comparison import trials, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

FAULTING = ROOT / "tests/gpu/fault_on_signal.py"
MOST_STARTS = 12  # until a service is complete
MOST_STILLBORN = 4  # members in a row that ended before they stood by: others would as well
SERVING_SECONDS = 60.0  # until a member serves, or waits to: PyTorch takes ten of them
FAILOVER_SECONDS = 15.0
DEATH_SECONDS = 10.0

TRAP_BESIDE = "a co-runner's trap"
TRAP_OWN = "its own trap"
OOB_BESIDE = "a co-runner's out-of-bounds write"
OOB_OWN = "its own out-of-bounds write"
KILLED = "kill -9"
DESERTED = "its MPS server's death"
STOPPED = "SIGSTOP, with a heartbeat"
HANDED_OVER = "a planned handover"
WAYS = (TRAP_BESIDE, TRAP_OWN, OOB_BESIDE, OOB_OWN, KILLED, DESERTED, STOPPED, HANDED_OVER)

ASKED_WAYS = tuple(filter(None, os.environ.get("FAILOVER_WAYS", "").split(",")))  # words; a way that has one of them is tried
CONFIG = "[services]\nmost_promotions = 1000\n"  # mpsd must not take a trial for flapping
# Milliseconds from the fault to the first useful step; of a memory fault, from the moment when the GPU answers again.
GOALS = {TRAP_BESIDE: 20.0, TRAP_OWN: 20.0, OOB_BESIDE: 20.0, OOB_OWN: 20.0, KILLED: 250.0}
STEP_GOALS = {KILLED: 250.0}  # where a step is that of a model, and takes as long as it takes: else the launch counts
AFTER_RECOVERY = ("kernel_log", "nvml", "vendor_log")
_BESIDE = {TRAP_BESIDE: "trap", OOB_BESIDE: "oob_write"}
_OWN = {TRAP_OWN: signal.SIGUSR2, OOB_OWN: signal.SIGUSR1}


@dataclass(frozen=True, slots=True)
class Failover:
    """The result of one disturbance, in milliseconds; None: not known. total: from the fault to the end of the first useful
    step. told: from the fault until the standby knew. mapped: from there until it may write its memory, and has reported it.
    step: from when it knew to the end of its first useful step. after_xid: from the driver's or the vendor server's report of
    the fault; of a memory fault, when the GPU has recovered. lost, repeated: steps. starting: members that were starting at
    that time, and may have delayed it. others: members in addition to the active, each with a context in a separate domain: the
    more of them, the later the driver reports a trap. why: the reason for a failure."""

    way: str
    total: float | None = None
    told: float | None = None
    detect: float | None = None
    fence: float | None = None
    promote: float | None = None
    mapped: float | None = None
    step: float | None = None
    after_xid: float | None = None
    lost: int = 0
    repeated: int = 0
    starting: int = 0
    others: int = 0
    is_same: bool = False
    why: str = ""

    @property
    def launch(self) -> float | None:
        """Return the time from the fault until the standby could launch its first useful kernel, and has reported it."""
        return None if self.told is None or self.mapped is None else self.told + self.mapped

    @property
    def before_xid(self) -> float | None:
        return None if self.total is None or self.after_xid is None else self.total - self.after_xid


def asked(ways: Sequence[str]) -> tuple[str, ...]:
    return tuple(way for way in ways if not ASKED_WAYS or any(word in way for word in ASKED_WAYS))


@dataclass(frozen=True, slots=True)
class Outcome:
    """lost: steps that a user received and the new active does not have. repeated: steps that it computed again. is_same: the
    result equals that of an undisturbed run."""

    lost: int
    repeated: int
    is_same: bool


Check = Callable[[Client, Client], Outcome]  # of the old active and of the new one


@dataclass(slots=True)
class Crew:
    """Keeps one active and a standby in a service. start: starts a member, which reports "standby" when it is warm and
    "promoted" when it serves. wanted: members. fewest: with fewer members, all missing ones are started; None: wanted. calm:
    seconds that `settle` waits for starting members, since their work on the GPU slows others down."""

    stage: Stage
    system: System
    service: str
    start: Callable[[], Client]
    wanted: int = 2
    fewest: int | None = None
    calm: float = 0.0
    members: list[Client] = field(default_factory=list)
    starts: int = 0
    stillborn: int = 0
    last_words: str = ""  # of the last member that ended

    def active(self) -> Client | None:
        """The one that was promoted last, if it lives."""
        serving = [(each.events("promoted")[-1]["generation"], each) for each in self.members if each.events("promoted")]
        newest = max(serving, key=lambda pair: int(pair[0]), default=None)
        return newest[1] if newest is not None and newest[1].is_running else None

    def settle(self) -> Client:
        """The active, when a standby is warm, if one is wanted.  Raises SystemFailed."""
        deadline, most, calm_at = time.monotonic() + SERVING_SECONDS, self.starts + MOST_STARTS, 0.0
        while time.monotonic() < deadline and self.starts < most and self.stillborn < MOST_STILLBORN:
            self.fill()
            active = self.active()
            if active is not None and (self.wanted < 2 or self._is_protected()):
                calm_at = calm_at or time.monotonic() + self.calm
                if time.monotonic() >= calm_at or not self.starting():
                    self.stillborn = 0
                    return active
            time.sleep(0.02)
        raise SystemFailed(f"no active with a standby, after {self.starts} starts: {self._words()}"[:400])

    def fill(self) -> None:
        """Start the missing members, without waiting for them."""
        for client in [each for each in self.members if not each.is_running]:
            self.last_words = f"pid {client.pid}: {client.trouble}"[:200]
            self.stage.say(self.last_words)
            self.stillborn = 0 if client.events("standby") else self.stillborn + 1
            self._forget(client)
        if len(self.members) < (self.wanted if self.fewest is None else min(self.fewest, self.wanted)):
            for _ in range(self.wanted - len(self.members)):
                self.members.append(self.start())
                self.starts += 1

    def starting(self) -> int:
        """Members that neither serve nor are ready to."""
        there = {each.pid for each in self.view().members if each.standing == "ready" or each.is_writer}
        return sum(each.is_running and each.pid not in there for each in self.members)

    def _is_protected(self) -> bool:
        service = self.view()
        return service.phase == "serving" and not service.protection

    def successor(self, before: Client, since_ns: int) -> Client:
        """Who was promoted since.  Raises SystemFailed."""
        deadline = time.monotonic() + FAILOVER_SECONDS
        while time.monotonic() < deadline:
            for each in self.members:
                if each is not before and any(said["monotonic_ns"] >= since_ns for said in each.events("promoted")):
                    return each
            time.sleep(0.002)
        raise SystemFailed(f"nobody took over: {self._words()}"[:400])

    def view(self) -> ServiceView:
        with Mpsd(self.system.pipe / "mpsd.sock", program="compare") as mpsd:
            return mpsd.ask(calls.service_get(self.service))

    def domain_of(self, client: Client) -> str:
        return next((each.domain for each in self.view().members if each.pid == client.pid), "")

    def end(self) -> None:
        """End the standbys first, so that mpsd promotes none of them."""
        active = self.active()
        for client in [*(each for each in self.members if each is not active), *([active] if active else [])]:
            client.signal(signal.SIGCONT)
            end_all([client])
            self._forget(client)

    def _forget(self, client: Client) -> None:
        self.members.remove(client)
        if client in self.system.clients:
            self.system.clients.remove(client)

    def _words(self) -> str:
        """Of mpsd, of each member, of the last one that ended."""
        try:
            found = self.view()
            words = [f"{found.phase} {found.protection}".strip()]
        except (MpsdError, OSError) as error:
            words = [str(error)]
        return "; ".join([*words, *(each.trouble for each in self.members), self.last_words])


@contextmanager
def heard(system: System) -> Iterator[Listener]:
    listener = Listener(system, "service.*", "fault.*")
    try:
        yield listener
    finally:
        listener.close()


def disturb(
    crew: Crew, way: str, check: Check, before: Callable[[], None], active: Client, culprit: Client | None
) -> Failover:
    """One trial.  before: called when the crew is complete, and who shall fault is ready to."""
    try:
        before()
        starting, others = crew.starting(), sum(each.is_running for each in crew.members) - 1
        with heard(crew.system) as listener:
            since_ns = time.monotonic_ns()
            began_ns = _strike(crew, way, active, culprit)
            standby = crew.successor(active, since_ns)
            promoted, first = standby.events("promoted")[-1], vault.said(standby, "first_step", FAILOVER_SECONDS)
            facts = _promotion(listener, standby.pid)
        _put_away(active, way)
    finally:
        if culprit is not None:
            end_all([culprit])
    crew.fill()
    outcome = check(active, standby)
    told_ns, step_ns = int(promoted["told_ns"]), int(first["monotonic_ns"])
    return Failover(
        way,
        total=(step_ns - began_ns) / 1e6,
        told=(told_ns - began_ns) / 1e6,
        detect=facts.get("detect_ms"),
        fence=facts.get("fence_ms"),
        promote=facts.get("promote_ms"),
        mapped=(int(promoted["monotonic_ns"]) - told_ns) / 1e6,
        step=(step_ns - told_ns) / 1e6,
        after_xid=_since_xid(crew.system, began_ns, step_ns),
        lost=outcome.lost,
        repeated=outcome.repeated,
        starting=starting,
        others=others,
        is_same=outcome.is_same,
    )


def _strike(crew: Crew, way: str, active: Client, culprit: Client | None) -> int:
    """When it was."""
    if culprit is not None:
        culprit.release()
        return int(vault.said(culprit, "fault", FAILOVER_SECONDS)["monotonic_ns"])
    if way in _OWN:
        active.signal(_OWN[way])
        return int(vault.said(active, "fault", FAILOVER_SECONDS)["monotonic_ns"])
    if way == HANDED_OVER:
        began_ns = time.monotonic_ns()
        with Mpsd(crew.system.pipe / "mpsd.sock", program="compare", timeout_seconds=FAILOVER_SECONDS + 5) as mpsd:
            mpsd.ask(calls.service_handover(crew.service, wait_seconds=FAILOVER_SECONDS))
        return began_ns
    server = trials.server_of(crew.system, active) if way == DESERTED else 0
    began_ns = time.monotonic_ns()
    if way == DESERTED:
        os.kill(server, signal.SIGKILL)
    else:
        active.signal(signal.SIGSTOP if way == STOPPED else signal.SIGKILL)
    return began_ns


def beside(crew: Crew, active: Client, way: str) -> Client | None:
    """Start a client in the active's current domain that faults when its input ends, so that the measured time does not contain
    its start. None: in this way no co-runner faults."""
    mode = _BESIDE.get(way)
    if mode is None:
        return None
    try:
        with Mpsd(crew.system.pipe / "mpsd.sock", program="compare") as mpsd:
            mpsd.ask(calls.client_move(active.pid, crew.domain_of(active)))  # where the next one like it is placed
    except MpsdError as error:
        raise SystemFailed(f"the co-runner could not be placed: {error}") from None
    culprit = trials.started(crew.system, "faulter", mode, "--gate", "--linger", "0.2", has_input=True)
    with Mpsd(crew.system.pipe / "mpsd.sock", program="compare") as mpsd:
        domains = {each.pid: each.domain for each in mpsd.pages(calls.client_list())}
    if domains.get(culprit.pid) != domains.get(active.pid):
        end_all([culprit])
        raise SystemFailed(f"the co-runner came to {domains.get(culprit.pid)}, the active is in {domains.get(active.pid)}")
    return culprit


def _promotion(listener: Listener, pid: int) -> dict[str, float]:
    """Return mpsd's event; it comes after the new active's report that it serves."""
    deadline = time.monotonic() + FAILOVER_SECONDS
    while time.monotonic() < deadline:
        for event in listener.events("service.promoted"):
            if event.facts.get("to_pid") == pid:
                return {name: value for name, value in event.facts.items() if isinstance(value, int | float)}
        time.sleep(0.01)
    raise SystemFailed(f"mpsd never said that pid {pid} was promoted")


def _since_xid(system: System, began_ns: int, end_ns: int) -> float | None:
    """Return the milliseconds since the first report of the fault that reached mpsd after the driver had handled it."""
    seen = []
    for line in (system.log / "mpsd.log").read_text(errors="replace").splitlines():
        if '"fault.seen"' in line:
            facts = json.loads(line)
            if facts.get("source") in AFTER_RECOVERY and facts["seen_ns"] >= began_ns:
                seen.append(facts["seen_ns"])
    return (end_ns - min(seen)) / 1e6 if seen else None


def _put_away(active: Client, way: str) -> None:
    """End the replaced member: it ends by itself or mpsd ends it; after a handover it is ended here."""
    if way == HANDED_OVER:
        end_all([active])
    if active.wait(DEATH_SECONDS) is None:
        raise SystemFailed(f"{way}: the one before, pid {active.pid}, lives on")
