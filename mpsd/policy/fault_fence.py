"""Which signs of a fault prove that nothing of a domain writes on the GPU any more: then its arenas may go to others at once.

A fault ends all contexts of its domain, the innocent ones too.  When the last of their writes is done depends on the fault:

| what faulted | others' writes end | first told | so it proves |
|---|---|---|---|
| an SM (trap, assert, ...) | 0.1-0.9 ms after the launch | 12-15 ms, kernel log | any trustworthy sign that tells the domain |
| memory (not mapped) | 121-127 ms: the driver has recovered | 1.3 ms, UVM events | its Xid, logged then; the event does not |
| a process, killed in mid-kernel | as of memory: it ends as Xid 31 | its Xid, vendor's log | the same |
| the GPU itself | not known | its Xid, kernel log or NVML | nothing; nor, then, do signs that tell no class |

All of that was seen on one H200 with driver 580, none of it is documented: hence the settle times, which are waited besides.
What proves nothing still says that the domain's contexts are lost.  Contained faults are of one process alone.  Pure.
Prose: docs/services.md, "Fencing".
"""

from dataclasses import dataclass

from mpsd.fault import FaultClass, Observation, Source
from mpsd.policy.verdict import is_proof
from mpsd.policy.xids import ENDS_SERVER, meaning_of

_OF_DRIVER = frozenset({Source.KERNEL_LOG, Source.NVML})


@dataclass(frozen=True, slots=True)
class Settle:
    """Seconds after the observation."""

    sm: float = 0.0
    mmu: float = 0.01


def is_fault_of_domain(seen: Observation) -> bool:
    """All contexts of its domain are lost, or are about to be."""
    if not seen.domain or seen.is_contained or seen.clears:
        return False
    return is_proof(seen) or seen.source is Source.VENDOR_LOG or (seen.source in _OF_DRIVER and seen.xid in ENDS_SERVER)


def fences_at_ns(seen: Observation, settle: Settle, is_multiuser: bool) -> int | None:
    """From when on nothing of its domain writes any more; None: this does not tell.

    is_multiuser: then a core dump, which its author could have made up, is taken from nobody.
    """
    if not is_fault_of_domain(seen) or (seen.source is Source.CORE_DUMP and is_multiuser):
        return None
    seconds = _settles_in(seen, settle)
    return None if seconds is None else seen.seen_ns + round(seconds * 1e9)


def is_of_gpu_itself(seen: Observation) -> bool:
    """Then what tells of a fault, and not of which class, may tell of this one, and proves nothing."""
    return _class_of(seen) is FaultClass.DEVICE


def tells_class(seen: Observation) -> bool:
    """It tells itself which fault it was."""
    return _class_of(seen) in (FaultClass.SM, FaultClass.MMU)


def _settles_in(seen: Observation, settle: Settle) -> float | None:
    match seen.source, _class_of(seen):
        case Source.KERNEL_LOG | Source.NVML | Source.VENDOR_LOG | Source.CORE_DUMP, FaultClass.SM:
            return settle.sm
        case Source.KERNEL_LOG | Source.NVML | Source.VENDOR_LOG, FaultClass.MMU:
            return settle.mmu
        case Source.VENDOR_LOG, FaultClass.UNKNOWN | FaultClass.HOST:  # it never says which
            return max(settle.sm, settle.mmu)
    return None


def _class_of(seen: Observation) -> FaultClass:
    return meaning_of(seen.xid).fault_class if seen.xid is not None else seen.fault_class
