"""The driver's bytes: golden ones from an H200, and arbitrary contents of memory that other processes write."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpsd.uvm import abi
from mpsd.uvm.abi import EventKind, UvmEvent

FATAL = bytes.fromhex("0601020101000000") + struct.pack("<QQ", 0x7000DEAD0000, 987654321) + bytes(40)
GPU_FAULT = bytes.fromhex("0301020101002700") + struct.pack("<QQ", 0x7000DEAD0000, 987654321) + bytes(40)
U32 = st.integers(0, 2**32 - 1)


def test_entries_as_they_were_seen_on_a_gpu() -> None:
    """580.159.04, an out-of-bounds write."""
    assert abi.parse_entry(FATAL) == UvmEvent(EventKind.FATAL, 1, "write", 0x7000DEAD0000, 987654321, 1)
    assert abi.parse_entry(GPU_FAULT) == UvmEvent(EventKind.GPU_FAULT, 1, "write", 0x7000DEAD0000, 987654321, 0)


@given(st.binary(min_size=64, max_size=64))
@example(bytes(64))
@example(b"\xff" * 64)
def test_any_64_bytes_are_an_event_or_none(entry: bytes) -> None:
    event = abi.parse_entry(entry)
    assert (event is None) == (entry[0] not in (3, 6) or entry[3] == 0)
    assert event is None or (event.access in {"", *abi.ACCESSES.values()} and event.fault_text and event.reason_text)


@given(st.binary(max_size=23))
def test_a_short_entry_is_refused(entry: bytes) -> None:
    with pytest.raises(ValueError, match="an event entry of"):
        abi.parse_entry(entry)


def test_a_fault_of_the_cpu_is_nobody_elses_business() -> None:
    assert abi.parse_entry(FATAL[:3] + b"\0" + FATAL[4:]) is None


@pytest.mark.parametrize(
    ("kind", "fault_type", "reason", "is_own"),
    [
        pytest.param(EventKind.FATAL, 1, 1, True, id="no mapping"),
        pytest.param(EventKind.FATAL, 3, 2, True, id="read-only"),
        pytest.param(EventKind.FATAL, 6, 3, True, id="a type that is always fatal"),
        pytest.param(EventKind.FATAL, 15, 3, False, id="poisoned memory is the GPU's"),
        pytest.param(EventKind.FATAL, 1, 4, False, id="the driver had no memory: a whole batch is ended"),
        pytest.param(EventKind.FATAL, 1, 5, False, id="the driver failed"),
        pytest.param(EventKind.FATAL, 1, 6, False, id="invalid operation"),
        pytest.param(EventKind.FATAL, 1, 0, False, id="no reason"),
        pytest.param(EventKind.FATAL, 1, 99, False, id="a reason that is not known"),
        pytest.param(EventKind.GPU_FAULT, 1, 0, False, id="a page of managed memory"),
    ],
)
def test_what_proves_that_a_client_did_it(kind: EventKind, fault_type: int, reason: int, is_own: bool) -> None:
    assert UvmEvent(kind, fault_type, "read", 0, 0, reason).is_own_doing is is_own


@given(U32, U32)
@example(0, 0)
@example(255, 0)
@example(0, 2**32 - 1)
def test_whatever_the_counters_hold_the_places_are_within_the_queue(get: int, put: int) -> None:
    places = abi.pending(get, put)
    assert len(places) < abi.QUEUE_ENTRIES
    assert all(0 <= place < abi.QUEUE_ENTRIES for place in places)
    assert not places or (places[0], (places[-1] + 1) % abi.QUEUE_ENTRIES) == (
        get % abi.QUEUE_ENTRIES,
        put % abi.QUEUE_ENTRIES,
    )


def test_the_questions_lie_where_the_headers_say() -> None:
    """Offsets of uvm_ioctl.h, written here by hand."""
    tracker = abi.pack_tracker(0x1111, 0x2222, 7)
    assert struct.unpack_from("<QQQ", tracker) == (0x1111, 256, 0x2222)
    assert (tracker[24:40], struct.unpack_from("<IIII", tracker, 40)) == (bytes(16), (1, 7, 0xFFFFFFFF, 1))
    assert struct.unpack_from("<II", abi.pack_threshold(1)) == (1, 0xFFFFFFFF)
    assert struct.unpack_from("<QI", abi.pack_enable(abi.ENABLED)) == (0x40, 0xFFFFFFFF)
    assert struct.unpack_from("<QQI", abi.pack_range(0x10000, 0x20000)) == (0x10000, 0x20000, 0xFFFFFFFF)
    assert struct.unpack_from("<QQ16sI", abi.pack_sparse(1, 2, b"u" * 16)) == (1, 2, b"u" * 16, 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("read", "offset"),
    [
        (abi.tracker_status, 48),
        (abi.threshold_status, 4),
        (abi.enable_status, 8),
        (abi.range_status, 16),
        (abi.sparse_status, 32),
        (abi.free_status, 16),
    ],
)
def test_each_answer_is_read_where_its_driver_writes_it(read, offset: int) -> None:
    buffer = bytearray(64)
    struct.pack_into("<I", buffer, offset, 0x68)
    assert read(buffer) == 0x68


def test_an_answer_where_late_drivers_write_it() -> None:
    buffer = abi.pack_range(0x10000, 0x10000)
    struct.pack_into("<I", buffer, 8, 0x1E)
    assert abi.free_status(buffer) == 0x1E


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0x16, "illegal action (0x16)"),
        (0x26, "invalid device (0x26)"),
        (0x77, "status 0x77"),
        (0xFFFFFFFF, "no answer where one was expected: a driver of another layout"),
    ],
)
def test_a_status_is_said_in_words(status: int, text: str) -> None:
    assert abi.status_text(status) == text


def test_the_uuid_of_a_gpu() -> None:
    assert abi.parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff") == bytes.fromhex("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize("uuid", ["", "GPU-", "GPU-0011", "GPU-" + "00" * 17, "00" * 16, "GPU-" + "zz" * 16, "MIG-GPU-00/1/0"])
def test_what_is_no_uuid_is_refused(uuid: str) -> None:
    with pytest.raises(ValueError, match="not the UUID of a GPU"):
        abi.parse_uuid(uuid)
