"""Which observations are signs of a fault, and which processes ended before the first sign."""

from collections.abc import Iterable, Sequence

from mpsd.model.fault import FaultClass, Observation, Party, Source
from mpsd.model.process import ProcessId
from mpsd.model.xid import meaning_of

SOONER_NS = 20_000_000  # so long before the first sign a culprit may see its error, and end (4 ms measured)
CONTAINED_NS = 5_000_000_000  # the failed client of a contained exception may end so late
BESIDE = frozenset({Source.PROCESS, Source.REPORT})  # signs of what accompanies a fault, not of the fault itself
_PROMPT = frozenset({Source.KMOD, Source.UVM_EVENTS, Source.KERNEL_LOG, Source.NVML})  # before innocent clients (measured)


def is_guess(seen: Observation) -> bool:
    return seen.xid is not None and not seen.domain and meaning_of(seen.xid).fault_class is not FaultClass.DEVICE


def tells_of_fault(seen: Observation) -> bool:
    """Return whether the observation is a sign of this fault, not of something that accompanies it, or of another fault."""
    return seen.source not in BESIDE and not seen.clears and not is_guess(seen)


def are_of_one(parties: Iterable[Party | None]) -> bool:
    """Return whether all these clients are known to be of one user and one container: none can accuse another owner's."""
    owners = {party.owner if party is not None else (None, "", "") for party in parties}
    return len(owners) <= 1 and all(uid is not None for uid, *_ in owners)


def is_contained(evidence: Iterable[Observation]) -> bool:
    """Return whether a sentinel contained the exception."""
    told = [each.is_contained for each in evidence if each.source is Source.SENTINEL]
    return bool(told) and all(told)


def prompt_signs(evidence: Sequence[Observation]) -> list[int]:
    """Return the times of the signs that come before a client can notice the fault."""
    return [each.seen_ns for each in evidence if tells_of_fault(each) and each.source in _PROMPT]


def gone_before(evidence: Sequence[Observation]) -> frozenset[ProcessId]:
    """Return the processes that ended by themselves before the fault, so lost nothing.

    One that ended with an error just before the first sign saw the fault itself.
    Only prompt sources count: other signs may come after the ends of the victims.
    """
    signs = prompt_signs(evidence)
    ends = [each for each in evidence if each.source is Source.PROCESS and each.fault_class is not FaultClass.HOST]
    return frozenset(
        each.process for each in ends if each.process and signs and each.seen_ns + SOONER_NS * each.is_failure < min(signs)
    )
