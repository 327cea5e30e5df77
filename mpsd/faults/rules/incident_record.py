"""Keep the evidence of one incident, and make the Incident from it.

fusion.py decides which incident takes an observation; verdict.py decides what the evidence means.
"""

from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.faults.rules import verdict
from mpsd.faults.rules.verdict import SECOND_NS, WINDOW_NS, confirms, is_proof
from mpsd.model.fault import Confidence, Deed, FaultClass, Incident, Observation, Party, Source
from mpsd.model.fault_signs import CONTAINED_NS, are_of_one, is_contained, tells_of_fault
from mpsd.model.process import ProcessId

MOST_SHOWN = 64  # pieces of evidence in an Incident
_MOST_KEPT = 192  # for the verdict
_MOST_PROOFS = 256  # including those that convict or clear, which come last and take precedence
_MOST_XIDS = 16
MOST_DEEDS = 32
_RECOVERED_NS = 3 * SECOND_NS  # after its last evidence, in a domain with fresh servers
_QUIET_NS = 30 * SECOND_NS  # in any other
_CONTAINED_NS = CONTAINED_NS + SECOND_NS  # after a contained exception: ends are noticed a little late
_PROOFS = (Source.KMOD, Source.UVM_EVENTS, Source.SENTINEL, Source.CORE_DUMP)
_WORTH = (*_PROOFS, *(each for each in Source if each not in verdict.PROOFS))

PartyOf = Callable[[ProcessId], Party | None]
AtOf = Callable[[int], float]


class IncidentRecord(Struct):
    """Guards that the first process named by a proof stays named, that a verdict rests on the clients present, and bounds.

    first_ns, last_ns: of the signs of the fault.  heard_ns: when evidence last came in.  renewed_ns, recovered_ns: when its
    domain had fresh servers, before the fault and after it.  named: the process that the first proof convicted.  is_certain:
    the clients present at the time were known.  was_of_one: all clients that its servers had served, or that were present,
    were of one user and container.  others: the culprits of faults in the same domain at the same time.
    """

    number: int
    domain: str
    gpu: str
    first_ns: int
    heard_ns: int
    is_device: bool = False
    is_certain: bool = True
    was_of_one: bool = True
    last_ns: int = 0
    recovered_ns: int | None = None
    renewed_ns: int | None = None
    named: ProcessId | None = None
    is_settled: bool = False
    has_ended_server: bool = False
    left_out: int = 0
    present: set[ProcessId] = field(default_factory=set)
    others: set[ProcessId] = field(default_factory=set)
    incident: Incident | None = None
    _evidence: list[Observation] = field(default_factory=list)
    _xids: list[int] = field(default_factory=list)
    _deeds: tuple[Deed, ...] = ()
    _parties: dict[ProcessId, Party] = field(default_factory=dict)

    @classmethod
    def of(cls, incident: Incident, now_ns: int) -> "IncidentRecord":
        """Return the record of an incident of an earlier mpsd, as far as it was stored."""
        return cls(
            incident.number,
            incident.domain,
            incident.gpu,
            incident.began_ns,
            now_ns,
            is_certain=incident.confidence is not Confidence.UNKNOWN,
            last_ns=max((each.seen_ns for each in incident.evidence if tells_of_fault(each)), default=incident.began_ns),
            present={party.process for party in incident.parties},
            incident=incident,
            _evidence=list(incident.evidence),
            _xids=list(incident.xids),
            _deeds=incident.deeds,
            _parties={party.process: party for party in incident.parties},
        )

    def add(self, seen: Observation, now_ns: int, party_of: PartyOf) -> None:
        """Add an observation; the same observation twice counts once."""
        alike = replace(seen, present=())
        if any(each == alike for each in self._evidence):
            return
        if seen.source is not Source.PROCESS:  # clients that lost their contexts end at any later time
            self.heard_ns = max(self.heard_ns, now_ns)
        if tells_of_fault(seen):
            self.first_ns = min(self.first_ns, seen.seen_ns)
            self.last_ns = max(self.last_ns, seen.seen_ns)
        if is_proof(seen) and self.named is None:
            self.named = seen.process
        if seen.domain and seen.domain == self.domain:
            self.gpu = self.gpu or seen.gpu
        if seen.xid is not None and seen.xid not in self._xids and len(self._xids) < _MOST_XIDS:
            self._xids.append(seen.xid)
        if confirms(seen) and seen.domain == self.domain and not seen.is_contained:
            self.has_ended_server = True
        self._meet(seen, party_of)
        if len(self._evidence) < (_MOST_PROOFS if seen.is_proof or seen.clears else _MOST_KEPT):
            self._evidence.append(alike)
        else:
            self.left_out += 1

    def evidence(self) -> tuple[Observation, ...]:
        return tuple(self._evidence)

    def note(self, deed: Deed) -> None:
        """Add an act of mpsd, up to MOST_DEEDS: a user can cause many, and must not push out those before."""
        self._deeds = (*self._deeds, deed)[:MOST_DEEDS]

    def has_room_in_time(self, seen_ns: int) -> bool:
        return self.first_ns - WINDOW_NS <= seen_ns <= self.last_ns + WINDOW_NS

    def distance_ns(self, seen_ns: int) -> int:
        """Return the distance from the signs of the fault; 0 between them."""
        return max(0, self.first_ns - seen_ns, seen_ns - self.last_ns)

    @property
    def settles_ns(self) -> int:
        if self.recovered_ns is not None and not self.is_device:
            return max(self.heard_ns + _RECOVERED_NS, self.recovered_ns)
        return self.heard_ns + (_CONTAINED_NS if self.is_contained else _QUIET_NS)

    @property
    def is_contained(self) -> bool:
        return is_contained(self._evidence)

    def publish(self, at_of: AtOf) -> Incident | None:
        """Return the Incident with its next revision; None if nothing in it has changed."""
        made = self._incident(at_of)
        before = self.incident
        if before is not None and replace(made, revision=before.revision) == before:
            return None
        self.incident = replace(made, revision=before.revision + 1 if before is not None else 1)
        return self.incident

    def _meet(self, seen: Observation, party_of: PartyOf) -> None:
        """Note the present clients while they can be identified.  Clients present with fresh servers came after the fault."""
        if self.is_device or seen.domain != self.domain:
            return
        if self.recovered_ns is None and self.is_certain:
            self.present |= set(seen.present)
        if seen.process is not None and _was_client(seen):
            self.present.add(seen.process)
        for process in self.present - self._parties.keys():
            if (party := party_of(process)) is not None:
                self._parties[process] = party

    def _incident(self, at_of: AtOf) -> Incident:
        present = frozenset(self.present - self.others)
        has_one_key = len({party and party.key for party in map(self._parties.get, present)}) == 1
        may_be_anothers = has_one_key and not self.was_of_one
        said = verdict.judge(self._evidence, present, self.named, self.is_certain, self._is_of_one, may_be_anothers)
        if self.is_device:
            said = replace(said, fault_class=FaultClass.DEVICE, culprit=None, confidence=Confidence.UNKNOWN, suspects=())
        began_ns = min([self.first_ns, *self._ends_that_explain(said.fault_class)])
        shown = sorted(self._evidence, key=lambda each: (not is_proof(each), not each.clears, _WORTH.index(each.source)))
        people = dict.fromkeys([*([said.culprit] if said.culprit else []), *said.suspects, *said.victims])
        return Incident(
            number=self.number,
            revision=0,
            began_ns=began_ns,
            began_at=self.incident.began_at if self._began_as(began_ns) and self.incident else at_of(began_ns),
            is_settled=self.is_settled,
            fault_class=said.fault_class,
            gpu=self.gpu,
            domain=self.domain,
            culprit=said.culprit,
            confidence=said.confidence,
            suspects=said.suspects,
            victims=said.victims,
            address=said.address,
            access=said.access,
            kernel=said.kernel,
            pc=said.pc,
            xids=tuple(self._xids),
            evidence=tuple(sorted(shown[:MOST_SHOWN], key=lambda each: each.seen_ns)),
            deeds=self._deeds,
            parties=tuple(self._parties[each] for each in people if each in self._parties),
        )

    @property
    def _is_of_one(self) -> bool:
        return self.was_of_one and are_of_one(map(self._parties.get, self.present))

    def _began_as(self, began_ns: int) -> bool:
        """Return whether the start is unchanged; then `began_at` stays, even if the clock was set in between."""
        return self.incident is not None and self.incident.began_ns == began_ns

    def _ends_that_explain(self, fault_class: FaultClass) -> list[int]:
        kills = (each for each in self._evidence if each.source is Source.PROCESS and each.fault_class is FaultClass.HOST)
        return [each.seen_ns for each in kills] if fault_class is FaultClass.HOST else []


def _was_client(seen: Observation) -> bool:
    """Return whether it names a client of the domain, even if mpsd did not know it.  An Xid 31 does, others name the server."""
    return is_proof(seen) or seen.source is Source.PROCESS or seen.xid == 31
