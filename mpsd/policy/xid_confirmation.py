"""Which Xids of the kernel log are confirmed: any user may be able to write into it (faults/xid_lines.py).

| the Xid | confirmed by |
|---|---|
| of the GPU itself (48, 79, ...) | NVML has an event with the same number and GPU, or cannot reach the GPU |
| any other that names a process of a domain | NVML has such an event; or the domain's own server says FAULT |
| any other | NVML has such an event |

NVML's event does not tell the domain, so it is for one domain alone: for the one that the first records name.  Where records
name two, or the event is another domain's already, the server's word is awaited: a user can make an Xid in a domain of its own
while it writes a record about another domain.  A UVM event confirms nothing here: it comes while kernels still write, and the
Xid is what says that they have ended (fault_fence.py).

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
class _Event:
    """Of NVML, of one number and GPU.  domain: whose it is; empty: not known yet."""

    heard_ns: int
    domain: str = ""


@dataclass(slots=True)
class UnconfirmedXids:
    """Guards that a record is passed on only with something that says the same and that no user can write, and bounds."""

    _waiting: dict[tuple[str, str], deque[tuple[int, Observation]]] = field(default_factory=dict)  # by GPU and domain
    _events: dict[tuple[str, int], _Event] = field(default_factory=dict)  # by GPU and number

    def hear(self, record: Observation, now_ns: int) -> bool:
        """Whether it is confirmed already.  If not, it is kept until something confirms it, or for a while."""
        event = self._fresh(record.gpu, record.xid, now_ns)
        if event is not None and self._takes(event, record):
            return True
        of_one = self._waiting.setdefault((record.gpu, "" if is_of_gpu(record) else record.domain), deque(maxlen=_MOST_OF_ONE))
        of_one.append((now_ns, record))
        return False

    def hear_nvml(self, gpu: str, xid: int, now_ns: int) -> tuple[Observation, ...]:
        """NVML has an event: what it confirms."""
        if not gpu:
            return ()
        event = self._fresh(gpu, xid, now_ns)
        if event is None:
            event = self._events[gpu, xid] = _Event(now_ns)
        alike = [each for each in self._records() if (each.gpu, each.xid) == (gpu, xid)]
        return self._pass_on(each for each in alike if self._takes(event, each))

    def hear_server(self, domain: str) -> tuple[Observation, ...]:
        """The domain's own server says FAULT: what that confirms.  An event that two domains waited for is its own."""
        of_it = [each for each in self._records() if each.domain == domain and not is_of_gpu(each)]
        for each in of_it:
            event = self._events.get((each.gpu, each.xid or 0))
            if event is not None and not event.domain:
                event.domain = domain
        return self._pass_on(of_it)

    def hear_lost(self, gpu: str) -> tuple[Observation, ...]:
        """NVML cannot reach the GPU: what that confirms."""
        return self._pass_on(each for each in self._records() if each.gpu == gpu and is_of_gpu(each))

    def waits_for_gpu(self, gpu: str) -> bool:
        return any(each.gpu == gpu and is_grave(each) for each in self._records())

    def drop_late(self, now_ns: int) -> tuple[Observation, ...]:
        """What was not confirmed in time."""
        late = [record for of_one in self._waiting.values() for at, record in of_one if now_ns - at > _limit_ns(record)]
        for key in [key for key, event in self._events.items() if now_ns - event.heard_ns > CONFIRM_NS]:
            del self._events[key]
        return self._pass_on(late)

    def next_drop_ns(self) -> int | None:
        dues = (at + _limit_ns(record) + 1 for of_one in self._waiting.values() for at, record in of_one)
        return min(dues, default=None)

    def _fresh(self, gpu: str, xid: int | None, now_ns: int) -> _Event | None:
        event = self._events.get((gpu, xid)) if gpu and xid is not None else None
        return event if event is not None and now_ns - event.heard_ns <= CONFIRM_NS else None

    def _takes(self, event: _Event, record: Observation) -> bool:
        """Whether the event confirms the record, which then has it."""
        if is_of_gpu(record) or not record.domain:
            return True
        named = {each.domain for each in self._records() if (each.gpu, each.xid) == (record.gpu, record.xid)} - {""}
        if not event.domain and named <= {record.domain}:
            event.domain = record.domain
        return event.domain == record.domain

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


def _limit_ns(record: Observation) -> int:
    return DEVICE_CONFIRM_NS if is_of_gpu(record) else CONFIRM_NS
