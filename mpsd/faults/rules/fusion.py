"""Decide which observations are of one fault.  verdict.py decides what they mean together.

The incident that takes an observation; the first row that fits.  "Near" is within 2 s of the known times of the incident.

| observation | belongs to |
|---|---|
| names a process, but no Xid, nor the vendor's log | the near incident where it was; a core dump: also one up to 10 s old |
| an Xid or GpuState of the GPU | its device incident, open for 30 s after its last; also near ones of its domains (1) |
| names its domain | the domain's incident that is near, or whose servers have ended and are not renewed yet (2) |
| names only its GPU | of the near incidents of the GPU: one with a matching class, then the nearest |

(1) Then no client in them is suspected.  (2) If it was seen before the renewal, or just after.  That a sentinel contains an
exception no more belongs to the exception's incident for CONTAINED_NS.

A proof that names another process than an earlier proof is of another fault: it is evidence in this incident, and has an
incident of its own.  The earlier proof keeps the incident, so that a published verdict does not change.  A core dump that names
only its domain, of a process that was not known to be present there, is of an unknown fault, and shows that the list of present
processes was not complete.

An observation that belongs to no incident opens one, or waits for one (correlation.py has the questions):

| observation | opens | else |
|---|---|---|
| proof: UVM fatal event, record of the module, core dump with an exception | its domain's | |
| Xid that ends servers (model/xid.py), vendor's log of a fault: with a domain | its domain's | |
| Xid or GpuState of the GPU | the GPU's | |
| a client's first error, the end of a process, a dump without an exception | nothing | waits for 2 s; dropped |
| any other Xid; one without a domain | nothing | waits for 2 s; dropped and counted |

Sources are late and lossy.  With every observation that names its domain the collector has to give `present`: the clients that
are connected to the domain's servers or are connecting, and those that left up to PRESENT_SECONDS before, but not before the
last renewal of the servers.  `process` of an Xid is set only where it is a client.  The present clients are not known for an
incident that mpsd detects more than 4 s late, or when its domain already has other servers or none, or in the first seconds of
mpsd itself: such an incident accuses no client without proof.

Prose: docs/faults.md.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from mpsd.faults.rules.correlation import FRESH_NS, RECENT_NS, fits, is_of_device, may_be_of, may_concern, opens, waited_for
from mpsd.faults.rules.incident_record import AtOf, IncidentRecord, PartyOf
from mpsd.faults.rules.verdict import SECOND_NS, WINDOW_NS, confirms, is_excuse, is_proof
from mpsd.model.fault import Deed, Incident, Observation, Source
from mpsd.model.process import ProcessId

PRESENT_SECONDS = 6.0
_PRESENT_NS = int(PRESENT_SECONDS * SECOND_NS)
_LATE_NS = _PRESENT_NS - WINDOW_NS  # so that clients that left just before the fault are counted
_DEVICE_NS = 30 * SECOND_NS
MOST_OPEN = 64
_MOST_WAITING = 64  # of each source and domain, so that none can crowd out another: a domain is mostly of one user
_MOST_DOMAINS = 256
_BROKEN_NS = 600 * SECOND_NS  # if servers are not renewed for so long, they had not ended


class Fusion:
    """Guards that one fault is one incident, that no incident accuses a client without evidence against it, and bounds.

    first_number: of the next incident.  at_of: converts a monotonic time to seconds since the epoch.  party_of: describes a
    client for people; called when an incident first concerns the client, which may be PRESENT_SECONDS after it left.  since_ns:
    when mpsd began to record which clients connect and leave.  was_of_one: whether all clients that the domain's servers have
    served so far, and those present, are of one user and container.  Every method returns the incidents that it changed, each
    with a new revision.  dropped: the number of observations and incidents that exceeded a bound.
    """

    def __init__(
        self,
        first_number: int,
        at_of: AtOf,
        party_of: PartyOf = lambda process: None,
        since_ns: int | None = None,
        was_of_one: Callable[[str, Iterable[ProcessId]], bool] = lambda domain, present: True,
    ) -> None:
        self._next = first_number
        self._known_ns = since_ns + _PRESENT_NS if since_ns is not None else None
        self._at_of = at_of
        self._party_of, self._was_of_one = party_of, was_of_one
        self._dossiers: dict[int, IncidentRecord] = {}
        self._waiting: dict[tuple[Source, str], deque[Observation]] = {}  # none is empty after `settle`
        self._renewed: dict[str, int] = {}
        self._broken: dict[str, int] = {}  # domains with ended servers that are not renewed, and when mpsd learned it
        self._changed: list[IncidentRecord] = []
        self.dropped = 0

    def __len__(self) -> int:
        """Return the number of all kept entries."""
        return len(self._dossiers) + sum(map(len, self._waiting.values())) + len(self._renewed) + len(self._broken)

    def take(self, seen: Observation, now_ns: int) -> Sequence[Incident]:
        """Take an observation, in the order in which mpsd receives them."""
        homes = self._homes(seen, now_ns)
        if not homes and opens(seen):
            homes = [self._open(seen, now_ns)]
        if not homes:
            self._wait(seen)
        for dossier in homes:
            if seen.domain == dossier.domain and dossier.recovered_ns is None:
                dossier.was_of_one &= self._was_of_one(seen.domain, seen.present)
            dossier.add(seen, now_ns, self._party_of)
            if dossier.has_ended_server and dossier.recovered_ns is None:
                _remember(self._broken, dossier.domain, now_ns)
        changed, self._changed = [*homes, *self._changed], []
        return self._publish(changed)

    def domain_recovered(self, domain: str, now_ns: int) -> Sequence[Incident]:
        """Note that the domain has fresh servers: its old incidents concern none of their clients."""
        _remember(self._renewed, domain, now_ns)
        self._broken.pop(domain, None)
        for dossier in self._of_domain(domain):
            if dossier.recovered_ns is None:
                dossier.recovered_ns = now_ns
        return ()

    def servers_started(self, domain: str, started_ns: int) -> None:
        """Note that all servers of the domain were started at this time or later, without a fault: for another user."""
        if started_ns > self._renewed.get(domain, 0):
            _remember(self._renewed, domain, started_ns)

    def domain_failed(self, domain: str, now_ns: int) -> Sequence[Incident]:
        """Note that the domain's servers have ended, without evidence: a starting mpsd finds a domain in this state."""
        _remember(self._broken, domain, now_ns)
        return ()

    def settle(self, now_ns: int) -> Sequence[Incident]:
        """Settle the incidents that are due, and forget those that are long over."""
        due = [each for each in self._dossiers.values() if not each.is_settled and each.settles_ns <= now_ns]
        for dossier in due:
            dossier.is_settled = True
        changed = self._publish(due)
        for dossier in [each for each in self._dossiers.values() if each.is_settled]:
            if now_ns - dossier.first_ns > RECENT_NS:
                del self._dossiers[dossier.number]
        for waiting in self._waiting.values():
            while waiting and now_ns - waiting[0].seen_ns > WINDOW_NS + _LATE_NS:
                self._count(waiting.popleft())
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting}
        return changed

    def next_settle_ns(self) -> int | None:
        """Return the time of the next due `settle`; None if no incident is open."""
        return min(
            (each.first_ns + RECENT_NS + 1 if each.is_settled else each.settles_ns for each in self._dossiers.values()),
            default=None,
        )

    def reopen(self, incident: Incident, now_ns: int) -> None:
        """Take over an incident that an earlier mpsd left unsettled."""
        self._dossiers[incident.number] = IncidentRecord.of(incident, now_ns)

    def note(self, number: int, deed: Deed) -> Sequence[Incident]:
        """Add an act of mpsd to an incident; do nothing if mpsd has dropped the incident."""
        dossier = self._dossiers.get(number)
        if dossier is None:
            return ()
        dossier.note(deed)
        return self._publish([dossier])

    # -- which incident an observation belongs to --------------------------------------------------------------------

    def _homes(self, seen: Observation, now_ns: int) -> list[IncidentRecord]:
        if is_of_device(seen):
            return [self._of_device(seen, now_ns), *self._excused(seen)]
        home = self._by_process(seen) or self._by_domain(seen)
        if home is None and not seen.domain and seen.gpu and not is_proof(seen):  # a stranger's own fault is another one
            home = self._by_gpu(seen)
            if home is not None:
                self._place(home, seen)
        if home is not None and is_proof(seen) and home.named not in (None, seen.process):
            return [home, self._sibling(home, seen, now_ns)]
        return [] if home is None else [home]

    def _by_process(self, seen: Observation) -> IncidentRecord | None:
        if seen.process is None or seen.xid is not None or confirms(seen):
            return None
        found = [each for each in self._dossiers.values() if seen.process in each.present and may_concern(each, seen)]
        return min(found, key=lambda each: (each.named != seen.process, each.distance_ns(seen.seen_ns)), default=None)

    def _by_domain(self, seen: Observation) -> IncidentRecord | None:
        if seen.source is Source.CORE_DUMP:
            return self._by_stranger(seen) if is_proof(seen) else None
        found = [each for each in self._of_domain(seen.domain) if may_be_of(each, seen)]
        return min(found, key=lambda each: (each.distance_ns(seen.seen_ns), -each.number), default=None)

    def _by_stranger(self, dump: Observation) -> IncidentRecord | None:
        """Place the exception of a process that was not known to be present; the present clients then count as not known."""
        near = [each for each in self._of_domain(dump.domain) if may_concern(each, dump)]
        unknown = [each for each in near if not each.is_certain and each.named in (None, dump.process)]
        for dossier in near:
            dossier.is_certain = False
        self._changed += near
        return min(unknown, key=lambda each: each.distance_ns(dump.seen_ns), default=None)

    def _by_gpu(self, seen: Observation) -> IncidentRecord | None:
        found = [each for each in self._near(seen) if each.gpu in ("", seen.gpu)]
        return min(found, key=lambda each: (not fits(each, seen), each.gpu == "", each.distance_ns(seen.seen_ns)), default=None)

    def _place(self, dossier: IncidentRecord, seen: Observation) -> None:
        """Take the GPU from an observation without a domain, unless another incident could be of that GPU too."""
        others = (each for each in self._near(seen) if each is not dossier)
        if seen.gpu and not seen.domain and not any(each.gpu in ("", seen.gpu) for each in others):
            dossier.gpu = dossier.gpu or seen.gpu

    def _near(self, seen: Observation) -> list[IncidentRecord]:
        return [each for each in self._dossiers.values() if not each.is_device and each.has_room_in_time(seen.seen_ns)]

    def _of_device(self, seen: Observation, now_ns: int) -> IncidentRecord:
        ours = (each for each in self._dossiers.values() if each.is_device and each.gpu == seen.gpu and not each.is_settled)
        found = next((each for each in ours if each.distance_ns(seen.seen_ns) <= _DEVICE_NS), None)
        return found or self._open(seen, now_ns)

    def _excused(self, seen: Observation) -> list[IncidentRecord]:
        """Return the incidents that an error of their GPU can explain.  An incident of an unknown GPU may be of this one."""
        if not is_excuse(seen):
            return []
        return [each for each in self._near(seen) if not each.gpu or not seen.gpu or each.gpu == seen.gpu]

    def _of_domain(self, domain: str) -> list[IncidentRecord]:
        if not domain:
            return []
        return [each for each in self._dossiers.values() if each.domain == domain and not each.is_device]

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self, seen: Observation, now_ns: int) -> IncidentRecord:
        if len(self._dossiers) >= MOST_OPEN:
            self._give_up_one()
        renewed_ns = self._renewed.get(seen.domain)
        is_of_old = renewed_ns is not None and seen.seen_ns <= renewed_ns
        is_device = is_of_device(seen)
        dossier = IncidentRecord(
            self._next,
            "" if is_device else seen.domain,
            seen.gpu,
            first_ns=seen.seen_ns,
            last_ns=seen.seen_ns,
            heard_ns=now_ns,
            is_device=is_device,
            is_certain=self._knows_who_was_there(seen, now_ns),
            recovered_ns=renewed_ns if is_of_old else None,
            renewed_ns=None if is_of_old else renewed_ns,
        )
        self._next += 1
        self._dossiers[dossier.number] = dossier
        if not is_device:
            self._gather(dossier, seen, now_ns)
        return dossier

    def _knows_who_was_there(self, seen: Observation, now_ns: int) -> bool:
        renewed_ns, broken_ns = self._renewed.get(seen.domain), self._broken.get(seen.domain)
        if self._known_ns is not None and seen.seen_ns < self._known_ns:
            return False
        if now_ns - seen.seen_ns > _LATE_NS or (renewed_ns is not None and seen.seen_ns <= renewed_ns + FRESH_NS):
            return False
        if broken_ns is not None and now_ns - broken_ns < _BROKEN_NS:
            return False
        return seen.source is not Source.CORE_DUMP or seen.process in seen.present

    def _sibling(self, first: IncidentRecord, seen: Observation, now_ns: int) -> IncidentRecord:
        """Return the incident of another culprit in the same domain at the same time."""
        near = [each for each in self._of_domain(first.domain) if may_concern(each, seen)]
        found = next((each for each in near if each.named == seen.process), None)
        if found is not None:
            return found
        sibling = self._open(seen, now_ns)
        if seen.domain in ("", first.domain):
            sibling.domain, sibling.is_certain, sibling.was_of_one = first.domain, first.is_certain, first.was_of_one
            sibling.recovered_ns, sibling.present = first.recovered_ns, set(first.present)
        for one, other in ((first, sibling.named or seen.process), (sibling, first.named)):
            one.others |= {other} if other is not None else set()
        return sibling

    def _gather(self, dossier: IncidentRecord, opener: Observation, now_ns: int) -> None:
        """Add the waiting observations that belong to the new incident, and the earlier errors of the GPU itself."""
        for waiting in self._waiting.values():
            for seen in [each for each in waiting if waited_for(dossier, opener, each)]:
                waiting.remove(seen)
                self._place(dossier, seen)
                dossier.add(seen, now_ns, self._party_of)
        for device in [each for each in self._dossiers.values() if each.is_device]:
            if not device.gpu or not dossier.gpu or device.gpu == dossier.gpu:
                excuses = (each for each in device.evidence() if is_excuse(each))
                for excuse in (each for each in excuses if dossier.has_room_in_time(each.seen_ns)):
                    dossier.add(excuse, now_ns, self._party_of)

    def _give_up_one(self) -> None:
        """Drop a settled incident, or else one, which is settled with its present evidence.

        The oldest of the domain with the most: clients that make up many faults give up their own.
        """
        of_domain = Counter(each.domain for each in self._dossiers.values())
        oldest = min(self._dossiers.values(), key=lambda each: (not each.is_settled, -of_domain[each.domain], each.number))
        self.dropped += not oldest.is_settled
        oldest.is_settled = True
        self._changed.append(oldest)
        del self._dossiers[oldest.number]

    def _wait(self, seen: Observation) -> None:
        waiting = self._waiting.setdefault((seen.source, seen.domain), deque())
        waiting.append(seen)
        if len(waiting) > _MOST_WAITING:
            self._count(waiting.popleft())

    def _count(self, dropped: Observation) -> None:
        """Count a dropped observation, except ends and reports of clients: these are frequent, and most belong to no fault."""
        self.dropped += dropped.source not in (Source.PROCESS, Source.REPORT)

    def _publish(self, dossiers: Iterable[IncidentRecord]) -> Sequence[Incident]:
        by_number = {each.number: each for each in dossiers}
        made = (by_number[number].publish(self._at_of) for number in sorted(by_number))
        return tuple(each for each in made if each is not None)


def _remember(times: dict[str, int], domain: str, now_ns: int) -> None:
    """Remember the time for the domain; keep only the last _MOST_DOMAINS."""
    times.pop(domain, None)
    times[domain] = now_ns
    if len(times) > _MOST_DOMAINS:
        del times[next(iter(times))]
