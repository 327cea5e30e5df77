"""A world where clients fault at random: domains, programs that start again, and sources that report late, falsely or not at
all.

The world knows the truth, and the observations go through the real Fusion and Blame. Times are seconds.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from mpsd.faults.rules.blame import Blame
from mpsd.faults.rules.blame_state import Change, Convicted, SuspectSet
from mpsd.faults.rules.fusion import PRESENT_SECONDS, Fusion
from mpsd.faults.rules.incident_json import blame_of, blame_text
from mpsd.faults.rules.response import is_known
from mpsd.faults.rules.settings import FaultSettings
from mpsd.model.accusation import accused
from mpsd.model.fault import Confidence, FaultClass, Incident, Observation, Party, Source
from mpsd.model.process import ProcessId

NS = 10**9
START = 10_000.0
GPUS = ("GPU-a", "GPU-b")
SHARED = ("default", "d2")
LATEST = 2.9  # seconds from an observation to its arrival; an incident is settled after 3
MMU, SM, HOST, DEVICE = FaultClass.MMU, FaultClass.SM, FaultClass.HOST, FaultClass.DEVICE


@dataclass(slots=True)
class Program:
    """habit: the class of the faults that it makes, None for an innocent one.  dumps: core dumps are enabled."""

    party: Party
    habit: FaultClass | None
    dumps: bool


@dataclass(slots=True)
class Place:
    """A domain. gone: the clients that left, and when."""

    name: str
    gpu: str
    clients: dict[ProcessId, Program] = field(default_factory=dict)
    gone: dict[ProcessId, float] = field(default_factory=dict)
    renewed: float = 0.0
    failed: bool = False
    failed_at: float = 0.0
    misled_at: float = 0.0  # an Xid of another domain pointed here

    def present(self, now: float) -> tuple[ProcessId, ...]:
        """The data that the collector has to provide (fusion.py)."""
        gone = (who for who, at in self.gone.items() if now - at < PRESENT_SECONDS and at >= self.renewed)
        return (*self.clients, *gone)


@dataclass(slots=True)
class Sources:
    """The existing sources, and how often each loses, repeats or delays an observation."""

    lost: float = 0.3
    repeated: float = 0.1
    late: float = 0.2
    absent: frozenset[Source] = frozenset()
    latest: float = LATEST


class World:
    def __init__(self, seed: int, programs: int, sources: Sources, settings: FaultSettings) -> None:
        self.random = random.Random(seed)
        self.sources, self.settings = sources, settings
        self.now = START
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._pids = itertools.count(), itertools.count(1000)
        self.places: dict[str, Place] = {}
        self.programs: list[Program] = []
        self.parties: dict[ProcessId, Party] = {}
        self.guilty: dict[ProcessId, FaultClass] = {}
        self.faults = 0
        self.incidents: dict[int, Incident] = {}
        self.changes: list[Change] = []
        self.convictions: list[Convicted] = []
        self.began: set[int] = set()  # cases that there have been
        self.blame = Blame(settings)
        self.fusion = self._new_fusion(1, None)
        habits = [None, None, None, MMU, SM]
        for index in range(programs):
            party = Party(ProcessId(0, 0), 1000 + index % 3, f"program{index}")
            self.programs.append(Program(party, self.random.choice(habits), self.random.random() < 0.5))

    # -- time --------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
            self._settle()
        self.now = end
        self._settle()

    def _settle(self) -> None:
        due = self.fusion.next_settle_ns()
        if due is not None and due <= self.now * NS:
            self._keep(self.fusion.settle(self._ns()))
        self._change(self.blame.decay(self.now))

    # -- mpsd --------------------------------------------------------------------------------------------------------

    def _ns(self) -> int:
        return int(self.now * NS)

    def _new_fusion(self, first_number: int, since_ns: int | None) -> Fusion:
        return Fusion(first_number, lambda ns: ns / NS, self.parties.get, since_ns)

    def restart_mpsd(self) -> None:
        """Forget what is not stored: open incidents, and clients that have gone."""
        self.blame = Blame(self.settings, blame_of(blame_text(self.blame.state)))
        self.fusion = self._new_fusion(max(self.incidents, default=0) + 1, self._ns())
        for place in self.places.values():
            place.gone.clear()
            if place.failed:
                self.fusion.domain_failed(place.name, self._ns())

    def _keep(self, changed: object) -> None:
        for incident in changed:
            self.incidents[incident.number] = incident
            self.check_incident(incident)
            before = {case.number: case for case in self.blame.state.cases}
            self._change(self.blame.take(incident, self.now))
            self._check_cases(before, incident)

    def _check_cases(self, before: dict[int, SuspectSet], incident: Incident) -> None:
        """Check that an older incident does not widen or reopen a case that a later one has narrowed or ended."""
        for case in self.blame.state.cases:
            known = before.get(case.number)
            if known is not None and known.last > incident.number:
                assert case.keys <= known.keys, f"{incident.number} widens {known} to {case}"
            if known is None and case.number == incident.number:
                assert incident.number not in self.began, f"{incident.number} begins {case} again"
        self.began |= {case.number for case in self.blame.state.cases}
        if not accused(incident):  # it has no suspects, or is of a class that accuses no client: its case is undone
            self.began.discard(incident.number)

    def _change(self, changes: object) -> None:
        for change in changes:
            self.changes.append(change)
            if isinstance(change, Convicted):
                self.convictions.append(change)
                keys = {self.parties[who].key for who, of in self.guilty.items() if of is not HOST}
                assert change.key in keys, f"{change} is a wrong conviction"

    def check_incident(self, incident: Incident) -> None:
        if is_known(incident):
            assert incident.culprit in self.guilty, f"{incident} accuses an innocent"
            assert incident.culprit not in incident.victims
            if incident.confidence is Confidence.PROVEN:
                assert incident.fault_class is self.guilty[incident.culprit]
        assert (incident.culprit is None) == (incident.confidence in (Confidence.SUSPECTED, Confidence.UNKNOWN))

    # -- clients -----------------------------------------------------------------------------------------------------

    def start(self, program: Program) -> None:
        key = program.party.key
        wanted = self.blame.placement(key, self.now)
        name = wanted or self.random.choice(SHARED)
        place = self.places.setdefault(name, Place(name, GPUS[len(self.places) % 2]))
        if place.failed:
            self.after(0.3, lambda: self.start(program))  # it accepts no client: the program waits
            return
        process = ProcessId(next(self._pids), int(self.now))
        self.parties[process] = replace(program.party, process=process)
        place.clients[process] = program

    def leave(self, place: Place, process: ProcessId, by_itself: bool = True) -> None:
        program = place.clients.pop(process, None)
        if program is None:
            return
        place.gone[process] = self.now
        seen = self._seen(place, Source.PROCESS, process=process, fault_class=FaultClass.UNKNOWN if by_itself else HOST)
        self._tell(place, [seen])
        self.after(self.random.uniform(0.3, 3.0), lambda: self.start(program))

    def fault(self, place: Place, process: ProcessId, of: FaultClass) -> None:
        """The process faults, and everybody's contexts are lost."""
        self.faults += 1
        self.guilty[process] = of
        self._tell(place, self._evidence(place, process, of))
        if self.random.random() < 0.2:
            self._misplace(place, of)
        self._fail(place, 0.02)

    def _misplace(self, place: Place, of: FaultClass) -> None:
        """An Xid of the fault names a process that was on its way there, and is in another domain by now."""
        here = [each for each in self.places.values() if each.gpu == place.gpu]  # else Incidents does not believe it
        others = [each for each in here if each is not place and each.clients and not each.failed]
        if not others:
            return
        other = self.random.choice(others)
        moved, other.misled_at = self.random.choice(list(other.clients)), self.now
        xids = [self._seen(other, Source.KERNEL_LOG, 0.13, xid=number) for number in ((31,) if of is MMU else (13, 43))]
        self._tell(other, xids)
        self._tell(place, [self._seen(place, Source.VENDOR_LOG, 0.35, process=moved)])

    def kill(self, place: Place, process: ProcessId, hurts: bool) -> None:
        """Its end is seen some time after it was killed; its co-runners fault meanwhile, or after it."""
        if (
            hurts and self.now - place.misled_at > 3.0
        ):  # else it cannot be known: Incidents.domain_of_pid prevents it
            self.faults += 1
            self.guilty[process] = HOST
            more = [self._seen(place, Source.VENDOR_LOG, self.random.uniform(0.05, 0.6))]
            more += [self._seen(place, Source.KERNEL_LOG, 0.04, xid=31)]
            self._tell(place, more)
            self._fail(place, 0.25)
        self.after(0.185, lambda: self.leave(place, process, by_itself=False))

    def fail_device(self, place: Place, xid: int) -> None:
        self.faults += 1
        facts = {"xid": xid, "gpu": place.gpu}
        here = [each for each in self.places.values() if each.gpu == place.gpu]
        seen = [Observation(Source.KERNEL_LOG, self._ns(), **facts), Observation(Source.NVML, self._ns() + 1000, **facts)]
        self._deliver(place, seen[self.random.randrange(2)])  # one of both always arrives: no other source reports it
        for each in here:
            self._tell(each, [self._seen(each, Source.VENDOR_LOG, 0.3), self._seen(each, Source.KERNEL_LOG, 0.1, xid=43)])
            self._fail(each, 0.02)

    def _fail(self, place: Place, soonest: float) -> None:
        place.failed, place.failed_at = True, self.now
        for process in list(place.clients):
            linger = 40.0 if self.random.random() < 0.02 else 0.0
            self.after(self.random.uniform(soonest, 0.7) + linger, lambda who=process: self.leave(place, who))
        self.after(0.8, lambda: self._renew(place))

    def _renew(self, place: Place) -> None:
        """Once its clients have gone; ended servers have reported their end by then."""
        if not place.failed:
            return
        if place.clients or self.now - place.failed_at < 0.79:
            self.after(0.1, lambda: self._renew(place))
            return
        place.failed, place.renewed = False, self.now
        place.gone.clear()
        self.fusion.domain_recovered(place.name, self._ns())

    # -- sources -----------------------------------------------------------------------------------------------------

    def _seen(self, place: Place, source: Source, after: float = 0.0, **facts: object) -> Observation:
        return Observation(source, int((self.now + after) * NS), gpu=place.gpu, domain=place.name, **facts)

    def _evidence(self, place: Place, culprit: ProcessId, of: FaultClass) -> list[Observation]:
        anybody = self.random.choice(list(place.clients))
        found = [self._seen(place, Source.VENDOR_LOG, self.random.uniform(0.2, 0.6))]
        for process, program in place.clients.items():
            if self.random.random() < 0.5:  # the error numbers are the same, and any of them may report first
                error = self.random.choice([MMU, SM])
                found.append(
                    self._seen(place, Source.REPORT, self.random.uniform(0.01, 0.6), process=process, fault_class=error)
                )
            if program.dumps:
                facts = {"process": process, "fault_class": SM} | self._dump(process == culprit, of)
                found.append(self._seen(place, Source.CORE_DUMP, self.random.uniform(0.4, 2.0), **facts))
        if of is MMU:
            facts = {"process": culprit, "fault_class": MMU, "is_proof": True, "address": 0x7000}
            found.append(self._seen(place, Source.UVM_EVENTS, 0.0013, **facts))
            found.append(self._seen(place, Source.KERNEL_LOG, 0.127, xid=31, process=anybody))
        else:
            found += [self._seen(place, Source.KERNEL_LOG, 0.015, xid=xid) for xid in (13, 43)]
        number = 31 if of is MMU else 13
        found.append(Observation(Source.NVML, int((self.now + 0.13) * NS), gpu=place.gpu, xid=number))
        return found

    def _dump(self, is_culprit: bool, of: FaultClass) -> dict[str, object]:
        """Whether the dump of an MMU fault holds an exception was not measured: here it does not."""
        holds = is_culprit and of is SM
        return {"is_proof": holds, "clears": not holds, "kernel": "bad" if holds else ""}

    def _tell(self, place: Place, seen: list[Observation]) -> None:
        for each in seen:
            if each.source in self.sources.absent:
                continue
            if each.source is not Source.PROCESS and self.random.random() < self.sources.lost:
                continue
            self._deliver(place, each)
            if self.random.random() < self.sources.repeated:
                self._deliver(place, each)

    def _deliver(self, place: Place, seen: Observation) -> None:
        is_late = self.random.random() < self.sources.late
        lag = self.random.uniform(0.0, self.sources.latest) if is_late else self.random.uniform(0.0, 0.01)

        def hear() -> None:
            present = place.present(self.now) if seen.domain else ()
            stamped = self._ns() if seen.source is Source.CORE_DUMP else seen.seen_ns  # it contains no time of its own
            self._keep(self.fusion.take(replace(seen, present=present, seen_ns=stamped), self._ns()))

        self.after(max(0.0, seen.seen_ns / NS - self.now) + lag, hear)
