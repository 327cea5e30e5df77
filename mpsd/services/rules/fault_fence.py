"""Decide which signs of a fault prove that a domain no longer writes on the GPU: then its arenas may get a new writer at once.

A fault ends all contexts of its domain, the innocent ones too.  The time of their last write depends on the fault:

| fault | others' writes end | first sign | proof |
|---|---|---|---|
| an SM (trap, assert, ...) | 0.1-0.9 ms after the launch | 12-15 ms, kernel log | any reliable sign that names the domain |
| memory (not mapped) | 121-127 ms: the driver has recovered | 1.3 ms, UVM events | its Xid, logged then; the event does not |
| a process, killed in mid-kernel | as of memory: it ends as Xid 31 | its Xid, vendor's log | the same |
| the GPU itself | not known | its Xid, kernel log or NVML | none; then signs without a class prove nothing either |

All this was measured on one H200 with driver 580 and is not documented: hence the additional settle times.  A core dump
proves nothing here: its author could have forged it, and Xids come sooner.  A sign without proof still shows that the
domain's contexts are lost.  A contained fault concerns one process.  Pure.
Prose: docs/services.md, "Fencing".
"""


from msgspec import Struct

from mpsd.faults.rules.verdict import is_proof
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.xid import ENDS_SERVER, meaning_of

_OF_DRIVER = frozenset({Source.KERNEL_LOG, Source.NVML})


class Settle(Struct, frozen=True):
    """Seconds to wait after the observation of an SM exception or a memory fault."""

    sm: float = 0.0
    mmu: float = 0.01


def is_fault_of_domain(seen: Observation) -> bool:
    """Return whether the fault ends all contexts of its domain."""
    if not seen.domain or seen.is_contained or seen.source is Source.CORE_DUMP:
        return False
    return is_proof(seen) or seen.source is Source.VENDOR_LOG or (seen.source in _OF_DRIVER and seen.xid in ENDS_SERVER)


def fences_at_ns(seen: Observation, settle: Settle) -> int | None:
    """Return the time from which on the domain no longer writes; None if the observation does not prove it."""
    if not is_fault_of_domain(seen):
        return None
    seconds = _settles_in(seen, settle)
    return None if seconds is None else seen.seen_ns + round(seconds * 1e9)


def is_of_gpu_itself(seen: Observation) -> bool:
    """Return whether the GPU itself failed; then signs without a class may mean this fault, and prove nothing."""
    return _class_of(seen) is FaultClass.DEVICE


def tells_class(seen: Observation) -> bool:
    """Return whether the observation itself names an SM exception or a memory fault."""
    return _class_of(seen) in (FaultClass.SM, FaultClass.MMU)


def _settles_in(seen: Observation, settle: Settle) -> float | None:
    match seen.source, _class_of(seen):
        case Source.KERNEL_LOG | Source.NVML | Source.VENDOR_LOG, FaultClass.SM:
            return settle.sm
        case Source.KERNEL_LOG | Source.NVML | Source.VENDOR_LOG, FaultClass.MMU:
            return settle.mmu
        case Source.VENDOR_LOG, FaultClass.UNKNOWN | FaultClass.HOST:  # it never names the class
            return max(settle.sm, settle.mmu)
    return None


def _class_of(seen: Observation) -> FaultClass:
    return meaning_of(seen.xid).fault_class if seen.xid is not None else seen.fault_class
