"""Judge the evidence of one incident: the class of the fault, the culprit and how it is known, and the victims.

Pure; the verdict does not depend on the order in which the evidence came in.  The culprit; the first row that fits:

| evidence | culprit | confidence |
|---|---|---|
| an Xid of lost memory or of a lost GPU: then the GPU made the exception | none | UNKNOWN |
| a proof names a process of the domain | that process | PROVEN |
| any other Xid of the GPU itself that needs a reset | none | UNKNOWN |
| the present clients are not known for certain, or none were present | none | UNKNOWN |
| the domain's server has not reported a fault | none yet | UNKNOWN |
| its servers have served clients of another user or container, and all present ones have one key (4) | none | UNKNOWN |
| one client was present, or connecting | that client | ALONE |
| an SM exception (Xid 13 or 69, and no 31), and dumps clear all clients but one | that client | LEFT |
| a contained SM exception, all clients are of one owner, and one alone failed soon after it (3) | that client | LIKELY |
| anything else | none; the suspects are all present clients except those cleared | SUSPECTED |

Only UVM events, records of the patched module, core dumps, and a sentinel among clients of one owner can prove.  The pid of an
Xid proves nothing: it is a server's, or that of an innocent client (measured).  A client's first error proves nothing either:
innocent clients get the same.  A dump without an exception clears its process of an SM exception and of nothing else: whether
the dump of an MMU fault holds one was not measured.  It clears no process where clients of several users or containers were
present: its author could have forged it, and would so accuse another user's client.

The class; the first row that fits:

| evidence | class |
|---|---|
| the same Xids of the GPU, before and after a proof | DEVICE; the class of the proof |
| Xid 13 or 69, and no 31 before it; or Xid 43 and no 31 at all (2) | SM |
| up to 2 s before the first sign of the fault, or 0.5 s after it, a client was killed (1) | HOST |
| Xid 31 | MMU |
| any other Xid, or the class that a source gives | that class |

(1) Or mpsd stopped holding the work of one that was killed (uvm/client_watch.py), however long after its end.  And no other
client ended with an error, or reported one, before that; what came more than 0.5 s before the first sign of a prompt source is
not counted.  The end of a process that is killed in mid-kernel is seen 0.2 s later (measured), which can be after its server's
fault.  Innocent clients end after a fault too, so a process that ends by itself does not count: an end has the class HOST only
if it is known to have come from outside.

(2) A trap gives only Xid 43, a process that is killed in mid-kernel Xid 31 (measured).

(3) It reported an error of an SM exception, or ended by itself with an error.  A contained exception leaves the others alone.
A client reports of itself alone, and another client can fail by chance at that time: so this is no proof, and convicts no
client; and if that other one fails later, within CONTAINED_NS, both are suspects again.  Where clients of several users or
containers were present, a culprit who keeps quiet would have another user's client named.

(4) GPU work of a client that has ended goes on while any process has its descriptors, and the server does not list it: what it
does then would convict the one client that is left.

An Xid that names only its GPU may be of another domain.  It is a guess: it gives a class only where no other evidence does.

HOST is an explanation, never a proof: a process that is killed in mid-kernel ends its co-runners, but a fault of another client
can come at the same moment.  Prose: docs/faults.md.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from mpsd.model.fault import Confidence, FaultClass, GpuState, Observation, Source
from mpsd.model.fault_signs import gone_before, is_contained, is_guess, prompt_signs, tells_of_fault
from mpsd.model.process import ProcessId
from mpsd.model.xid import ENDS_SERVER, meaning_of

SECOND_NS = 1_000_000_000
WINDOW_NS = 2 * SECOND_NS  # observations further apart are not of one fault
_EARLY_NS = SECOND_NS // 5  # the sentinel's event can come after the client's own error

PROOFS = frozenset({Source.KMOD, Source.UVM_EVENTS, Source.SENTINEL, Source.CORE_DUMP})  # what can prove, the best first

_END_SEEN_NS = SECOND_NS // 2
_SM_XIDS, _STOPPED_XID, _MMU_XID = frozenset({13, 69}), 43, 31


class Verdict(Struct, frozen=True):
    """The fields of an Incident that the evidence decides."""

    fault_class: FaultClass
    culprit: ProcessId | None
    confidence: Confidence
    suspects: tuple[ProcessId, ...]
    victims: tuple[ProcessId, ...]
    address: int | None = None
    access: str = ""
    kernel: str = ""
    pc: int | None = None


def is_proof(seen: Observation) -> bool:
    return seen.is_proof and seen.source in PROOFS and seen.process is not None


def is_excuse(seen: Observation) -> bool:
    """Return whether the GPU itself failed in a way that can have ended servers."""
    return seen.gpu_state is GpuState.LOST or (seen.xid is not None and meaning_of(seen.xid).excuses)


def _is_loss(seen: Observation) -> bool:
    """Return whether the GPU failed in a way that makes exceptions in any process that runs there."""
    return is_excuse(seen) and seen.xid in ENDS_SERVER


def judge(
    evidence: Sequence[Observation],
    present: frozenset[ProcessId],
    named: ProcessId | None,
    is_certain: bool = True,
    is_of_one: bool = True,
    may_be_anothers: bool = False,
) -> Verdict:
    """Return the verdict.

    named: the process that a proof convicts.  present: all clients that were in the domain.  is_certain: `present` was known at
    the time.  is_of_one: all of them are of one user and one container, so dumps, which their authors can forge, may clear,
    and an own failure may name.
    """
    dead = _ended_before(evidence, present)
    fault_class = _class_of(evidence, named, dead)
    cleared = _cleared(evidence) if fault_class is FaultClass.SM and is_of_one else frozenset()
    is_open = may_be_anothers or not is_certain
    culprit, confidence = _who(evidence, present, cleared, named, is_open, is_of_one)
    suspects: Sequence[ProcessId] = ()
    if confidence is Confidence.SUSPECTED:
        suspects = sorted(present - cleared, key=lambda each: (each not in dead, each))
    hurt = present - {culprit} - set(suspects) - gone_before(evidence)
    victims = hurt if is_certain and not _loses_nothing(evidence) else ()
    return _with_place(
        Verdict(fault_class, culprit, confidence, tuple(suspects), tuple(sorted(victims))), _by_worth(evidence, culprit)
    )


def _who(
    evidence: Sequence[Observation],
    present: frozenset[ProcessId],
    cleared: frozenset[ProcessId],
    named: ProcessId | None,
    is_open: bool,
    is_of_one: bool,
) -> tuple[ProcessId | None, Confidence]:
    left = present - cleared
    if named is not None and not any(map(_is_loss, evidence)):
        return named, Confidence.PROVEN
    if any(map(is_excuse, evidence)) or is_open or not left or not any(map(confirms, evidence)):
        return None, Confidence.UNKNOWN
    if len(present) == 1:
        return next(iter(present)), Confidence.ALONE
    if len(left) == 1 and _is_sm_for_certain(evidence):
        return next(iter(left)), Confidence.LEFT
    if is_of_one and is_contained(evidence) and (failed := _only_failed(evidence, left)) is not None:
        return failed, Confidence.LIKELY
    return None, Confidence.SUSPECTED


def confirms(seen: Observation) -> bool:
    """Return whether the domain's server, or its sentinel, reports the fault.  An Xid may name a client that has moved."""
    return seen.source in (Source.VENDOR_LOG, Source.SENTINEL)


def _class_of(evidence: Sequence[Observation], named: ProcessId | None, dead: Iterable[ProcessId]) -> FaultClass:
    proofs = [each for each in evidence if is_proof(each) and each.process == named]
    if proofs and not any(map(_is_loss, evidence)):
        return min(proofs, key=lambda each: each.seen_ns).fault_class
    if any(map(is_excuse, evidence)):
        return FaultClass.DEVICE
    signs = sorted((each for each in evidence if tells_of_fault(each)), key=lambda each: each.seen_ns)
    strong = next((each.xid for each in signs if each.xid in _SM_XIDS or each.xid == _MMU_XID), None)
    if strong in _SM_XIDS or _is_stopped(evidence):
        return FaultClass.SM
    if dead:
        return FaultClass.HOST
    if strong == _MMU_XID:
        return FaultClass.MMU
    signs += [each for each in evidence if is_guess(each)]
    classes = (meaning_of(each.xid).fault_class if each.xid is not None else each.fault_class for each in signs)
    return next((each for each in classes if each not in (FaultClass.UNKNOWN, FaultClass.HOST)), FaultClass.UNKNOWN)


def _ended_before(evidence: Sequence[Observation], present: frozenset[ProcessId]) -> frozenset[ProcessId]:
    """Return the processes that explain the fault by their ends; none that ended after another client's error."""
    signs = [each.seen_ns for each in evidence if tells_of_fault(each)]
    if not signs:
        return frozenset()
    kills = [each for each in evidence if each.source is Source.PROCESS and each.fault_class is FaultClass.HOST]
    since_ns = min(prompt_signs(evidence), default=0) - _END_SEEN_NS
    failed = [each.seen_ns for each in evidence if each.source is Source.REPORT or each.is_failure]
    errors = [each for each in failed if each >= since_ns]
    first_ns, last_ns = min(signs) - WINDOW_NS, min([min(signs) + _END_SEEN_NS, *errors])
    return frozenset(each.process for each in kills if each.process and first_ns <= each.seen_ns <= last_ns) & present


def _cleared(evidence: Sequence[Observation]) -> frozenset[ProcessId]:
    """Return the clients that did not fault.  The sentinel's looks are each at one exception: of two, none clears a client."""
    if not _is_sm_for_certain(evidence):
        return frozenset()
    is_one = len({each.pc for each in evidence if each.source is Source.SENTINEL and each.pc is not None}) <= 1
    clearing = (each for each in evidence if each.clears and (is_one or each.source is not Source.SENTINEL))
    return frozenset(each.process for each in clearing if each.process is not None)


def _is_sm_for_certain(evidence: Sequence[Observation]) -> bool:
    """Return whether the fault is an SM exception without doubt, so that a dump without an exception clears."""
    is_told = bool(_told(evidence) & _SM_XIDS) or any(each.source is Source.SENTINEL for each in evidence)
    return is_told and not _may_be_mmu(evidence)


def _is_stopped(evidence: Sequence[Observation]) -> bool:
    return _STOPPED_XID in _told(evidence) and not _may_be_mmu(evidence)


def _told(evidence: Iterable[Observation]) -> set[int | None]:
    """Return the Xids of this domain."""
    return {each.xid for each in evidence if not is_guess(each)}


def _may_be_mmu(evidence: Iterable[Observation]) -> bool:
    """Return whether any Xid reports an MMU fault, also one of an unknown domain."""
    return any(each.xid == _MMU_XID for each in evidence)


def _loses_nothing(evidence: Iterable[Observation]) -> bool:
    """Return whether the patched module, or a client's guard, absorbed the whole fault, and no server seems to have ended."""
    told = [each for each in evidence if tells_of_fault(each)]
    if any(each.source is Source.SENTINEL for each in told):
        return is_contained(told)
    proofs = [each for each in told if is_proof(each)]
    by_module = [each.is_contained for each in proofs if each.source is Source.KMOD]
    absorbed = by_module or [each.is_contained for each in proofs if each.source is Source.UVM_EVENTS]
    return bool(absorbed) and all(absorbed) and not any(confirms(each) or each.xid in ENDS_SERVER for each in told)


def _only_failed(evidence: Sequence[Observation], left: frozenset[ProcessId]) -> ProcessId | None:
    """Return the one client that failed with a contained exception, while another one did not."""
    since = min(each.seen_ns for each in evidence if each.source is Source.SENTINEL) - _EARLY_NS
    failed = {each.process for each in evidence if each.is_failure and each.process in left and each.seen_ns >= since}
    return next(iter(failed)) if len(failed) == 1 and len(left) > 1 else None


def _by_worth(evidence: Iterable[Observation], culprit: ProcessId | None) -> list[Observation]:
    """Return the evidence that can give the place of the fault, the best first, without evidence about other processes."""
    about = [each for each in evidence if not each.clears and each.source is not Source.PROCESS]
    if culprit is not None:
        about = [each for each in about if each.process in (culprit, None) or each.xid is not None]
    else:
        about = [each for each in about if each.source is not Source.REPORT]
    return sorted(about, key=lambda each: (not is_proof(each), each.seen_ns))


def _with_place(verdict: Verdict, evidence: Sequence[Observation]) -> Verdict:
    return Verdict(
        verdict.fault_class,
        verdict.culprit,
        verdict.confidence,
        verdict.suspects,
        verdict.victims,
        next((each.address for each in evidence if each.address is not None), None),
        next((each.access for each in evidence if each.access), ""),
        next((each.kernel for each in evidence if each.kernel), ""),
        next((each.pc for each in evidence if each.pc is not None), None),
    )
