"""Faults on a simulated GPU: the outcome of each class, the page tables afterwards, and the records."""

import errno
import itertools
import time
from collections.abc import Callable

import pytest
from device import FIRST, REPLAYABLE, WHY, WINDOW_BYTES, WINDOW_MAX, Action, Device, Kind, Mode, refusal
from fake_gpu import (
    BATCH,
    MULTI_PROCESS_SHARING,
    NO_MEMORY,
    NO_SPARSE,
    OLD,
    PAGE_2M,
    PAGE_4K,
    PAGE_64K,
    PHYSICAL,
    SPARSE_ENTRY,
    AccessType,
    FakeGpu,
    FaultType,
    Reason,
    VaSpace,
)  # fmt: skip
from fake_gpu import REPLAYABLE as AS_REPLAYABLE

HOLE = 0x7E00_0000_0000  # neither the guest's process nor UVM uses addresses here; 1 TiB is used below
FIRMWARE, FIRMWARE_BYTES = 4 << 30, 512 << 20
NOT_CANONICAL = 1 << 60  # neither lower nor upper half, also with 57 bits of addresses
SINKABLE = [each for each in FaultType if each < FaultType.PDE_SIZE]
HOPELESS = [each for each in FaultType if each >= FaultType.PDE_SIZE]
GIB = 1 << 30


def stories(device: Device) -> list[str]:
    return [record.story for record in device.drain()]


def test_a_fault_in_a_hole_is_contained(device: Device, gpu: FakeGpu) -> None:
    """The window around it is sparse from end to end, and no address outside it is."""
    assert gpu.entry(HOLE) is None
    assert gpu.access(HOLE + 0x12_3000).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert record.story == "FAULT SUNK"
    assert record.flags == REPLAYABLE | FIRST
    assert record.address == HOLE + 0x12_3000
    assert (record.window_base, record.window_bytes) == (HOLE, WINDOW_BYTES)
    assert gpu.is_sparse(HOLE, WINDOW_BYTES)
    assert gpu.entry(HOLE - PAGE_64K) != SPARSE_ENTRY
    assert gpu.entry(HOLE + WINDOW_BYTES) != SPARSE_ENTRY


def test_its_client_is_stopped_once_and_its_end_is_told(device: Device, gpu: FakeGpu) -> None:
    """FAULT before any process can notice, then STOPPED, then GONE, in spite of further faults."""
    for number in range(3):
        assert gpu.access(HOLE + number * WINDOW_BYTES).absorbed
    found = device.wait(Kind.STOPPED)
    gpu.close()
    found += device.wait(Kind.GONE)
    assert [each.story for each in found if each.kind == Kind.FAULT] == ["FAULT SUNK"] * 3
    assert [each.kind for each in found].count(Kind.STOPPED) == 1
    assert (found[0].kind, found[-1].kind) == (Kind.FAULT, Kind.GONE)
    assert [bool(each.flags & FIRST) for each in found if each.kind == Kind.FAULT] == [True, False, False]


def test_a_client_that_goes_at_once_is_still_stopped_first(device: Device, va_space: VaSpace) -> None:
    """Its end waits for the stop that is on its way."""
    device.set_policy(Mode.SINK)
    for _ in range(50):
        with FakeGpu(device, va_space) as gpu:
            assert gpu.access(HOLE).absorbed
    assert stories(device) == ["FAULT SUNK", "STOPPED", "GONE"] * 50


def test_another_fault_in_a_window_is_contained_silently(device: Device, gpu: FakeGpu) -> None:
    """Thousands of threads, one page after the other: one record a window."""
    gpu.access(HOLE)
    device.wait(Kind.STOPPED)
    for at in range(PAGE_4K, WINDOW_BYTES, 37 * PAGE_4K):
        assert gpu.access(HOLE + at).absorbed
    assert stories(device) == []
    assert gpu.is_sparse(HOLE, WINDOW_BYTES)


@pytest.mark.parametrize("fault_type", SINKABLE)
@pytest.mark.parametrize("access_type", list(AccessType))
def test_every_access_that_a_mapping_would_help_is_contained(
    device: Device, gpu: FakeGpu, fault_type: FaultType, access_type: AccessType
) -> None:
    assert gpu.access(HOLE, fault_type, access_type).absorbed
    assert device.wait(Kind.FAULT)[0].access_type == {0: 4, 1: 1, 2: 2, 3: 3, 4: 3}[access_type]  # as UVM's events number them


@pytest.mark.parametrize("window_bytes", [64 << 10, 1 << 20, 2 << 20, WINDOW_MAX])
def test_a_window_is_as_large_as_the_policy_says(device: Device, gpu: FakeGpu, window_bytes: int) -> None:
    device.set_policy(Mode.SINK, window_bytes=window_bytes)
    assert gpu.access(HOLE + 5 * window_bytes + 3 * PAGE_4K).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.window_base, record.window_bytes) == (HOLE + 5 * window_bytes, window_bytes)
    ends = (record.window_base, record.window_base + window_bytes // 2, record.window_base + window_bytes - PAGE_64K)
    assert [gpu.entry(at) for at in ends] == [SPARSE_ENTRY] * 3


def test_windows_grow_for_a_client_that_strays_far(device: Device, gpu: FakeGpu) -> None:
    """So that a budget of windows ends an endless stray, and a short one hides little."""
    device.set_policy(Mode.SINK, window_bytes=PAGE_64K)
    for number in range(17):
        assert gpu.access(HOLE + number * GIB).absorbed
    sizes = [each.window_bytes for each in device.drain() if each.kind == Kind.FAULT]
    assert [len(list(group)) for _, group in itertools.groupby(sizes)] == [8, 8, 1]
    assert sorted(set(sizes)) == [PAGE_64K, 2 * PAGE_64K, 4 * PAGE_64K]


def test_windows_grow_no_further_than_the_most(device: Device, gpu: FakeGpu) -> None:
    """Entries are written while every fault of the GPU waits: 1 GiB of them would be 16,384 in 512 tables."""
    device.set_policy(Mode.SINK, window_bytes=WINDOW_MAX // 2)
    for number in range(33):
        assert gpu.access(HOLE + number * GIB).absorbed
    sizes = [each.window_bytes for each in device.drain() if each.kind == Kind.FAULT]
    assert (len(sizes), sizes[0], max(sizes)) == (33, WINDOW_MAX // 2, WINDOW_MAX)


def test_a_window_stays_clear_of_its_neighbours(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    va_space.reserve(HOLE + (1 << 20), PAGE_64K)
    assert gpu.access(HOLE).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.window_base, record.window_bytes) == (HOLE, 1 << 20)
    assert gpu.entry(HOLE + (1 << 20)) != SPARSE_ENTRY


def test_beside_memory_in_the_same_64_kib_the_window_is_made_of_small_pages(
    device: Device, va_space: VaSpace, gpu: FakeGpu
) -> None:
    """A sparse entry for 64 KiB would hide the live 4 KiB page."""
    va_space.reserve(HOLE, PAGE_4K)
    gpu.map(HOLE, PAGE_4K, PAGE_4K)
    before = gpu.entry(HOLE, PAGE_4K)
    assert gpu.access(HOLE + 2 * PAGE_4K).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.window_base, record.window_bytes) == (HOLE + 2 * PAGE_4K, 2 * PAGE_4K)
    assert gpu.is_sparse(HOLE + 2 * PAGE_4K, 2 * PAGE_4K, PAGE_4K)
    assert gpu.entry(HOLE, PAGE_4K) == before != SPARSE_ENTRY
    assert gpu.entry(HOLE) != SPARSE_ENTRY


def test_reserved_memory_that_is_not_mapped(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    """cuMemAddressReserve without cuMemMap: the window stays inside the reservation."""
    va_space.reserve(HOLE + PAGE_64K, 3 * PAGE_64K)
    assert gpu.access(HOLE + 2 * PAGE_64K).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.window_base, record.window_bytes) == (HOLE + 2 * PAGE_64K, 2 * PAGE_64K)


def test_reserved_memory_beside_what_is_mapped_in_it(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    va_space.reserve(HOLE, 8 * PAGE_2M)
    gpu.map(HOLE, PAGE_2M)
    gpu.map(HOLE + 2 * PAGE_2M, PAGE_2M)
    before = [gpu.entry(HOLE + at, PAGE_2M) for at in (0, 2 * PAGE_2M)]
    device.set_policy(Mode.SINK, window_bytes=8 * PAGE_2M)
    assert gpu.access(HOLE + PAGE_2M).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.window_base, record.window_bytes) == (HOLE + PAGE_2M, PAGE_2M)
    assert [gpu.entry(HOLE + at, PAGE_2M) for at in (0, 2 * PAGE_2M)] == before
    assert gpu.is_sparse(HOLE + PAGE_2M, PAGE_2M)


@pytest.mark.parametrize("page_bytes", [PAGE_4K, PAGE_64K, PAGE_2M])
def test_a_write_to_what_is_mapped_for_reading(device: Device, va_space: VaSpace, gpu: FakeGpu, page_bytes: int) -> None:
    """The part of the mapping around it becomes sparse, in the mapping's own pages; the rest stays."""
    va_space.reserve(HOLE, 8 * PAGE_2M)
    gpu.map(HOLE, 4 * PAGE_2M, page_bytes)
    assert gpu.access(HOLE + PAGE_2M + page_bytes * 0, FaultType.WRITE, reason=Reason.INVALID_PERMISSIONS).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.story, record.window_base, record.window_bytes) == ("FAULT SUNK", HOLE + PAGE_2M, PAGE_2M)
    assert gpu.is_sparse(HOLE + PAGE_2M, PAGE_2M, page_bytes)
    for beside in (HOLE + PAGE_2M - page_bytes, HOLE + 2 * PAGE_2M):
        assert gpu.entry(beside, page_bytes) not in (SPARSE_ENTRY, 0, None)


def test_a_window_that_the_client_unmapped_is_laid_again(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    """It maps its own memory over the window and takes it away; what faults there later is contained too."""
    va_space.reserve(HOLE, 8 * PAGE_2M)
    assert gpu.access(HOLE).absorbed
    gpu.map(HOLE, PAGE_2M, PAGE_64K)
    assert gpu.entry(HOLE) != SPARSE_ENTRY
    gpu.unmap(HOLE)
    assert gpu.entry(HOLE) != SPARSE_ENTRY
    until = time.monotonic() + 10
    while not gpu.is_sparse(HOLE, PAGE_2M):
        assert gpu.access(HOLE).absorbed
        assert time.monotonic() < until, "it is not laid again"


def test_a_window_that_does_not_help_is_given_up(device: Device, gpu: FakeGpu) -> None:
    """A GPU that goes on faulting where entries are sparse would replay for ever."""
    until = time.monotonic() + 50
    while gpu.access(HOLE).absorbed:
        assert time.monotonic() < until, "it is replayed for ever"
    assert stories(device)[-1] == "FAULT CANCELLED INEFFECTIVE"


REFUSALS: dict[str, tuple[str, Callable[[FakeGpu], object]]] = {
    "physical": ("PHYSICAL", lambda gpu: gpu.access(HOLE, flags=AS_REPLAYABLE | PHYSICAL)),
    "out of memory": ("GLOBAL", lambda gpu: gpu.access(HOLE, reason=Reason.OUT_OF_MEMORY)),
    "internal error": ("GLOBAL", lambda gpu: gpu.access(HOLE, reason=Reason.INTERNAL_ERROR)),
    "of a batch": ("GLOBAL", lambda gpu: gpu.access(HOLE, flags=AS_REPLAYABLE | BATCH)),
    "of a batch, whatever its type": (
        "GLOBAL",
        lambda gpu: gpu.access(HOLE, FaultType.PDE_SIZE, flags=AS_REPLAYABLE | BATCH),
    ),
    "not canonical": ("UNADDRESSABLE", lambda gpu: gpu.access(NOT_CANONICAL)),
    "the firmware's part": ("RESERVED", lambda gpu: gpu.access(FIRMWARE)),
    "no memory for tables": ("MEMORY", lambda gpu: gpu.access(HOLE, flags=AS_REPLAYABLE | NO_MEMORY)),
    **{each.name: ("TYPE", lambda gpu, each=each: gpu.access(HOLE, each)) for each in HOPELESS},
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_contained_takes_the_usual_way_and_says_why(device: Device, gpu: FakeGpu, name: str) -> None:
    """It condemns no client: no STOPPED, and at the end no GONE."""
    why, access = REFUSALS[name]
    outcome = access(gpu)
    assert not outcome.absorbed
    gpu.close()
    assert stories(device) == [f"FAULT CANCELLED {why}"]


@pytest.mark.parametrize("address", [FIRMWARE - PAGE_4K, FIRMWARE + FIRMWARE_BYTES, 2 * FIRMWARE])
def test_windows_are_laid_up_to_the_firmwares_part_and_not_in_it(device: Device, gpu: FakeGpu, address: int) -> None:
    """It is [4 GiB, 4.5 GiB) and nowhere else: RM lets UVM have no address space in which it is elsewhere (test_build.py)."""
    device.set_policy(Mode.SINK, window_bytes=WINDOW_MAX)
    assert gpu.access(address).absorbed
    record = device.wait(Kind.FAULT)[0]
    assert (record.story, record.window_base) == ("FAULT SUNK", address // WINDOW_MAX * WINDOW_MAX)
    assert gpu.entry(FIRMWARE) != SPARSE_ENTRY
    assert gpu.entry(FIRMWARE + FIRMWARE_BYTES - PAGE_64K) != SPARSE_ENTRY


def test_managed_memory_is_left_to_uvm(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    va_space.manage(HOLE, PAGE_2M)
    assert not gpu.access(HOLE).absorbed
    assert stories(device) == ["FAULT CANCELLED MANAGED"]


def test_after_a_failure_the_next_fault_is_contained(device: Device, gpu: FakeGpu) -> None:
    assert not gpu.access(HOLE, flags=AS_REPLAYABLE | NO_MEMORY).absorbed
    assert gpu.access(HOLE).absorbed
    assert [each.story for each in device.wait(Kind.STOPPED)] == ["FAULT CANCELLED MEMORY", "FAULT SUNK", "STOPPED"]


@pytest.mark.parametrize("mode", [Mode.REPORT, Mode.SINK])
@pytest.mark.parametrize("reason", [Reason.INVALID_ADDRESS, Reason.OUT_OF_MEMORY])
def test_what_is_cancelled_with_a_batch_says_so_in_every_mode(
    device: Device, va_space: VaSpace, mode: Mode, reason: Reason
) -> None:
    """Out of memory, UVM cancels all pending accesses: the record names an innocent client."""
    device.set_policy(mode)
    with FakeGpu(device, va_space) as gpu:
        assert not gpu.access(HOLE, reason=reason, flags=AS_REPLAYABLE | BATCH).absorbed
    assert stories(device) == ["FAULT CANCELLED GLOBAL"]


@pytest.mark.parametrize("flags", [OLD, NO_SPARSE])
def test_a_gpu_that_cannot(device: Device, va_space: VaSpace, flags: int) -> None:
    device.set_policy(Mode.SINK)
    try:
        made = FakeGpu(device, va_space, flags=flags)
    except OSError as exc:
        assert (exc.errno, flags) == (errno.EOPNOTSUPP, NO_SPARSE)
        return  # driver 595 serves no such GPU any more
    with made as gpu:
        assert not gpu.access(HOLE).absorbed
    assert stories(device) == ["FAULT CANCELLED UNSUPPORTED"]


def test_a_va_space_that_several_processes_share(device: Device) -> None:
    """Stopping would stop all of them; and it belongs to no single process."""
    device.set_policy(Mode.SINK)
    with VaSpace(MULTI_PROCESS_SHARING, has_mm=False) as va_space, FakeGpu(device, va_space) as gpu:
        assert not gpu.access(HOLE).absorbed
    (record,) = device.drain()
    assert (record.story, record.tgid, record.comm) == ("FAULT CANCELLED SHARED", 0, b"")


def test_the_budget_of_windows(device: Device, gpu: FakeGpu) -> None:
    """One fault too many is cancelled; in the windows that are there, faults are still contained."""
    device.set_policy(Mode.SINK, max_windows=3)
    assert [gpu.access(HOLE + number * PAGE_2M).absorbed for number in range(5)] == [True] * 3 + [False] * 2
    found = [each.story for each in device.wait(Kind.STOPPED) if each.kind == Kind.FAULT]
    found += stories(device)
    assert [each for each in found if each != "STOPPED"] == ["FAULT SUNK"] * 3 + ["FAULT CANCELLED BUDGET"] * 2
    assert gpu.access(HOLE + PAGE_2M).absorbed


def test_off_means_off(device: Device, gpu: FakeGpu) -> None:
    device.set_policy(Mode.OFF)
    assert not gpu.access(HOLE).absorbed
    assert stories(device) == []


def test_report_means_report(device: Device, gpu: FakeGpu) -> None:
    device.set_policy(Mode.REPORT)
    assert not gpu.access(HOLE).absorbed
    assert stories(device) == ["FAULT CANCELLED POLICY"]
    assert gpu.entry(HOLE) is None


def test_a_policy_holds_from_now_on_also_for_the_condemned(device: Device, gpu: FakeGpu) -> None:
    assert gpu.access(HOLE).absorbed
    device.wait(Kind.STOPPED)
    device.set_policy(Mode.REPORT)
    assert not gpu.access(HOLE).absorbed
    assert stories(device) == ["FAULT CANCELLED POLICY"]


def test_a_gpu_va_space_that_comes_again_begins_anew(device: Device, va_space: VaSpace) -> None:
    device.set_policy(Mode.SINK)
    for _ in range(3):
        with FakeGpu(device, va_space) as gpu:
            assert gpu.entry(HOLE) is None
            assert gpu.access(HOLE).absorbed
            assert device.wait(Kind.STOPPED)[0].flags & FIRST
        assert stories(device) == ["GONE"]


def test_the_whys_are_all_known() -> None:
    """Each of them is shown above, in test_clients.py, test_module.py or, GPU needed, nowhere: a new one wants a test."""
    assert set(WHY) == {
        "NONE", "POLICY", "TYPE", "PHYSICAL", "UNADDRESSABLE", "MANAGED", "BUSY", "BUDGET", "MEMORY", "EXEMPT", "GLOBAL",
        "SHARED", "UNSUPPORTED", "RESERVED", "INEFFECTIVE", "FAILED", "OWNER",
    }  # fmt: skip


def test_a_second_gpu_with_the_number_of_the_first_is_its_own(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    with FakeGpu(device, va_space, number=1) as other:
        assert gpu.access(HOLE).absorbed
        assert other.entry(HOLE) is None
        assert other.access(HOLE + PAGE_2M).absorbed
        found = device.wait(Kind.STOPPED)
        while [each.kind for each in found].count(Kind.STOPPED) < 2:
            found += device.wait(Kind.STOPPED)
    faults = [each for each in found if each.kind == Kind.FAULT]
    assert [bytes(each.gpu_uuid) for each in faults] == [b"mpsd-made-up-00\0", b"mpsd-made-up-01\0"]
    assert all(each.flags & FIRST and each.action == Action.SUNK for each in faults)


def test_the_test_device_refuses_nonsense(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    """The test device checks its own arguments, so that a mistake in a test is no oops."""
    assert refusal(FakeGpu, device, va_space, 99) == "EINVAL"
    assert refusal(gpu.access, HOLE, 31) == "EINVAL"
    assert refusal(gpu.entry, HOLE, 12345) == "EINVAL"
    assert refusal(gpu.map, HOLE, PAGE_2M) == "ENXIO"
    assert refusal(gpu.unmap, HOLE) == "ENXIO"
