"""The events of a client become one observation, with proof if they contain proof."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.fault import TEXT_CHARACTERS, FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.uvm.abi import EventKind, UvmEvent
from mpsd.uvm.fault_digest import digest

P = ProcessId(4711, 99)
OWN = UvmEvent(EventKind.FATAL, 1, "write", 0x7000DEAD0000, 5, 1)
GPU_FAULT = UvmEvent(EventKind.GPU_FAULT, 1, "write", 0x7000DEAD0000, 4, 0)
BATCH = UvmEvent(EventKind.FATAL, 1, "read", 0x2000, 5, 5)
POISONED = UvmEvent(EventKind.FATAL, 15, "read", 0x2000, 5, 3)


def of(*events: UvmEvent, lost: int = 0, gpus: tuple[str, ...] = ("GPU-a",)) -> Observation | None:
    return digest(events, lost, P, "default", gpus, 1000)


def test_a_fatal_fault_is_proof() -> None:
    text = "write at 0x7000dead0000: no mapping (invalid address)"
    assert of(GPU_FAULT, OWN) == Observation(
        Source.UVM_EVENTS, 1000, FaultClass.MMU, "GPU-a", "default", P, is_proof=True, address=0x7000DEAD0000, access="write",
        text=text,
    )  # fmt: skip


def test_managed_memory_is_no_fault() -> None:
    assert of(GPU_FAULT) is None
    assert of() is None
    assert of(lost=7) is None


def test_a_flood_is_one_line_with_its_size() -> None:
    found = of(*[GPU_FAULT] * 300, *[OWN] * 3, lost=2)
    assert found is not None
    assert found.text.endswith("; the first of 3; 2 more were lost")


def test_what_the_driver_did_to_a_whole_batch_accuses_nobody() -> None:
    found = of(BATCH)
    assert found is not None
    assert (found.is_proof, found.fault_class) == (False, FaultClass.MMU)


def test_poison_is_the_gpus() -> None:
    found = of(POISONED)
    assert found is not None
    assert (found.is_proof, found.fault_class) == (False, FaultClass.DEVICE)


def test_among_several_the_proof_counts() -> None:
    found = of(BATCH, OWN)
    assert found is not None
    assert (found.is_proof, found.address) == (True, OWN.address)


def test_of_several_gpus_none_is_named() -> None:
    found = of(OWN, gpus=("GPU-a", "GPU-b"))
    assert found is not None
    assert found.gpu == ""


@given(st.builds(UvmEvent, st.just(EventKind.FATAL), *[st.integers(0, 255), st.sampled_from(["", "read"])],
                 *[st.integers(0, 2**64 - 1)] * 2, st.integers(0, 255)), st.integers(0, 2**64))  # fmt: skip
def test_every_fatal_event_can_be_said(event: UvmEvent, lost: int) -> None:
    found = of(event, lost=lost)
    assert found is not None
    assert 0 < len(found.text) <= TEXT_CHARACTERS
