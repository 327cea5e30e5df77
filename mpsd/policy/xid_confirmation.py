"""Which Xids of the kernel log are confirmed: any user may be able to write into it (faults/xid_lines.py).

| the Xid | confirmed by |
|---|---|
| of the GPU itself (48, 79, ...) | NVML has an event with the same number and GPU, or cannot reach the GPU |
| any other that names a process of a domain | NVML has such an event; or the domain's own server says FAULT |
| any other | NVML has such an event |

NVML's event does not tell the domain, and a user can make an Xid in a domain of its own while it writes a record about another
domain.  So an event is for the records of one domain, and there is one event for each record: a domain whose record needed no
event of its own takes the next one.  Where the records that wait name two domains, the server's word is awaited.  A UVM event
confirms nothing here: it comes while kernels still write, and the Xid is what says that they have ended (fault_fence.py).

What is not confirmed within CONFIRM_NS has no effect.  Pure; times are given.  Prose: docs/faults.md, "What an Xid may do".
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpsd.fault import FaultClass, Observation
from mpsd.policy.hearsay import CONFIRM_NS
from mpsd.policy.xids import meaning_of, must_drain

DEVICE_CONFIRM_NS = 10_000_000_000  # NVML may need seconds to say that a GPU does not answer
_MOST_OF_ONE = 16  # records about one domain, or one GPU, that wait; the oldest go


def is_of_gpu(record: Observation) -> bool:
    return record.xid is not None and meaning_of(record.xid).fault_class is FaultClass.DEVICE


def is_grave(record: Observation) -> bool:
    """The GPU would be drained because of it, or clients excused."""
    return record.xid is not None and (meaning_of(record.xid).excuses or must_drain(record.xid, record.text))


@dataclass(slots=True)
class _Events:
    """Of NVML, of one number and GPU.  domain: whose records the last one confirmed.  spare: how many confirmed none yet.
    owed: records of that domain that were confirmed before their own event."""

    heard_ns: int
    domain: str = ""
    spare: int = 0
    owed: int = 0

    def give(self, domain: str, records: int) -> None:
        """They confirm so many records of that domain, or that name none."""
        self.domain = domain or self.domain
        used = min(records, self.spare)
        self.spare -= used
        self.owed = min(self.owed + records - used, _MOST_OF_ONE)


@dataclass(slots=True)
class UnconfirmedXids:
    """Guards that a record is passed on only with something that says the same and that no user can write, and bounds."""

    _waiting: dict[tuple[str, str], deque[tuple[int, Observation]]] = field(default_factory=dict)  # by GPU and domain
    _events: dict[tuple[str, int], _Events] = field(default_factory=dict)  # by GPU and number

    def hear(self, record: Observation, now_ns: int) -> bool:
        """Whether it is confirmed already.  If not, it is kept until something confirms it, or for a while."""
        events = self._fresh(record.gpu, record.xid, now_ns)
        if events is not None and self._is_for(events, record):
            events.give(_domain_of(record), 1)
            return True
        of_one = self._waiting.setdefault((record.gpu, _domain_of(record)), deque(maxlen=_MOST_OF_ONE))
        of_one.append((now_ns, record))
        return False

    def hear_nvml(self, gpu: str, xid: int, now_ns: int) -> tuple[Observation, ...]:
        """NVML has an event: what it confirms."""
        if not gpu:
            return ()
        events = self._fresh(gpu, xid, now_ns) or _Events(now_ns)
        self._events[gpu, xid] = events
        events.heard_ns = now_ns
        if events.owed:
            events.owed -= 1
            return ()
        events.spare += 1
        alike = self._alike(gpu, xid)
        named = {_domain_of(each) for each in alike} - {""}
        confirmed = [each for each in alike if len(named) <= 1 or not _domain_of(each)]
        if confirmed:
            events.give(named.pop() if len(named) == 1 else "", len(confirmed))
        return self._pass_on(confirmed)

    def hear_server(self, domain: str) -> tuple[Observation, ...]:
        """The domain's own server says FAULT: what that confirms.  Events that two domains waited for are its own."""
        of_it = [each for each in self._records() if each.domain == domain and not is_of_gpu(each)]
        for each in of_it:
            if (events := self._events.get((each.gpu, each.xid or 0))) is not None and events.spare:
                events.give(domain, 1)
        return self._pass_on(of_it)

    def hear_lost(self, gpu: str) -> tuple[Observation, ...]:
        """NVML cannot reach the GPU: what that confirms."""
        return self._pass_on(each for each in self._records() if each.gpu == gpu and is_of_gpu(each))

    def waits_for_gpu(self, gpu: str) -> bool:
        return any(each.gpu == gpu and is_grave(each) for each in self._records())

    def drop_late(self, now_ns: int) -> tuple[Observation, ...]:
        """What was not confirmed in time."""
        late = [record for of_one in self._waiting.values() for at, record in of_one if now_ns - at > _limit_ns(record)]
        for key in [key for key, events in self._events.items() if now_ns - events.heard_ns > CONFIRM_NS]:
            del self._events[key]
        return self._pass_on(late)

    def next_drop_ns(self) -> int | None:
        dues = (at + _limit_ns(record) + 1 for of_one in self._waiting.values() for at, record in of_one)
        return min(dues, default=None)

    def _fresh(self, gpu: str, xid: int | None, now_ns: int) -> _Events | None:
        events = self._events.get((gpu, xid)) if gpu and xid is not None else None
        return events if events is not None and now_ns - events.heard_ns <= CONFIRM_NS else None

    def _is_for(self, events: _Events, record: Observation) -> bool:
        domain = _domain_of(record)
        if not domain or domain == events.domain:
            return True
        named = {_domain_of(each) for each in self._alike(record.gpu, record.xid)} - {""}
        return events.spare > 0 and named <= {domain}

    def _alike(self, gpu: str, xid: int | None) -> list[Observation]:
        return [each for each in self._records() if (each.gpu, each.xid) == (gpu, xid)]

    def _records(self) -> list[Observation]:
        return [record for of_one in self._waiting.values() for _, record in of_one]

    def _pass_on(self, records: Iterable[Observation]) -> tuple[Observation, ...]:
        gone = tuple(records)
        for key, of_one in list(self._waiting.items()):
            left = deque((each for each in of_one if each[1] not in gone), maxlen=_MOST_OF_ONE)
            self._waiting[key] = left
            if not left:
                del self._waiting[key]
        return gone


def _domain_of(record: Observation) -> str:
    """Of the GPU itself it is whatever process it names."""
    return "" if is_of_gpu(record) else record.domain


def _limit_ns(record: Observation) -> int:
    return DEVICE_CONFIRM_NS if is_of_gpu(record) else CONFIRM_NS
