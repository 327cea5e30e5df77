"""Guards that a client lays between its allocations: what its event queue says of them, and what becomes of that."""

from mpsd.fault import FaultClass, Observation, Source
from mpsd.model import ProcessId
from mpsd.policy.verdict import judge
from mpsd.uvm.abi import EventKind, UvmEvent
from mpsd.uvm.digest import digest_guarded, guarded

P, OTHER = ProcessId(4711, 99), ProcessId(4712, 99)
WINDOW = range(0x5000_0000_0000, 0x5040_0000_0000)
INSIDE = UvmEvent(EventKind.GPU_FAULT, 1, "write", 0x5000_0020_0000, 4, 0)
FIRST = UvmEvent(EventKind.GPU_FAULT, 1, "read", WINDOW.start, 4, 0)
LAST = UvmEvent(EventKind.GPU_FAULT, 1, "read", WINDOW.stop - 1, 4, 0)
BEFORE = UvmEvent(EventKind.GPU_FAULT, 1, "write", WINDOW.start - 1, 4, 0)
BEYOND = UvmEvent(EventKind.GPU_FAULT, 1, "write", WINDOW.stop, 4, 0)
FATAL = UvmEvent(EventKind.FATAL, 1, "write", 0x5000_0020_0000, 5, 1)


def test_only_served_faults_in_a_guard_count() -> None:
    """Managed memory of the program's own, elsewhere, faults all day."""
    assert guarded([BEFORE, FIRST, INSIDE, LAST, BEYOND, FATAL], [WINDOW]) == (FIRST, INSIDE, LAST)
    assert guarded([INSIDE], []) == ()


def seen(*events: UvmEvent) -> Observation:
    return digest_guarded(events, P, "default", ("GPU-a",), 1000)


def test_an_access_is_proof_and_contained() -> None:
    text = "write at 0x500000200000: in a guard that the client has laid between its allocations; the first of 2"
    assert seen(INSIDE, LAST) == Observation(
        Source.UVM_EVENTS, 1000, FaultClass.MMU, "GPU-a", "default", P, is_proof=True, address=0x5000_0020_0000,
        access="write", text=text, is_contained=True,
    )  # fmt: skip


def test_nobody_is_the_victim_of_an_access_to_a_guard() -> None:
    verdict = judge([seen(INSIDE)], frozenset({P, OTHER}), P)
    assert (verdict.culprit, verdict.victims) == (P, ())


def test_a_fatal_fault_beside_it_has_victims() -> None:
    fatal = Observation(Source.UVM_EVENTS, 1001, FaultClass.MMU, process=P, is_proof=True)
    assert judge([seen(INSIDE), fatal], frozenset({P, OTHER}), P).victims == (OTHER,)
