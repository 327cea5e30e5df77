"""The real devices, as far as a machine without them allows: mpsd leaves other files alone, reports missing answers, and reads
a queue as the kernel writes it."""

import errno
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.host import processes
from mpsd.uvm import abi
from mpsd.uvm.device import DeviceQueue, Devices
from mpsd.uvm.space import Outcome, Space, Taken, Unavailable
from tests.descriptors import descriptors, opened
from tests.inspecting import INSPECTOR, is_same
from tests.unit.uvm.fake_clients import GPU

NULL, ZERO, FULL = Path("/dev/null"), Path("/dev/zero"), Path("/dev/full")  # stand for the driver's three devices
OPENER = "import os,sys; f=[os.open(each, os.O_RDWR) for each in sys.argv[1:]]; print(f[0], flush=True); input()"


def spaces_of(devices: Devices, *opened: Path) -> list[Space]:
    """Return the spaces of a process that has `opened` open."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", OPENER, *map(str, opened)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    process = processes.process_id(child.pid)
    assert process is not None
    pidfd = processes.open_pidfd(process)
    assert child.stdout
    assert pidfd is not None
    try:
        number = int(child.stdout.readline())
        found = devices.open_spaces(process, pidfd, [])
        assert all(space.pair.number == number and is_same(space.pair) for space in found)
        assert not found or devices.open_spaces(process, pidfd, found) == []
        return found
    finally:
        child.communicate("\n")
        os.close(pidfd)


@pytest.mark.parametrize("path", [Path("/nothing/there"), Path("/etc/passwd")])
def test_without_the_device_that_is_said(path: Path) -> None:
    with pytest.raises(Unavailable, match=str(path)):
        spaces_of(Devices(INSPECTOR, path), NULL)


def test_a_file_that_only_has_the_name_is_left_alone(tmp_path: Path) -> None:
    """Its owner might make every call on it block for ever."""
    (tmp_path / "null").write_text("")
    assert spaces_of(Devices(INSPECTOR, NULL, control=FULL), tmp_path / "null", FULL) == []


def test_a_device_that_answers_nothing_refuses_everything_and_closes_once() -> None:
    before = descriptors()
    (space,) = spaces_of(Devices(INSPECTOR, NULL, tools=ZERO, control=FULL), NULL, FULL, FULL)
    assert space.reserve(0x10000, 0x10000).outcome is Outcome.REFUSED
    assert space.lay_sparse(0x10000, 0x10000, GPU).outcome is Outcome.REFUSED
    assert space.free(0x10000, 0x10000).outcome is Outcome.REFUSED
    assert "UUID" in space.lay_sparse(0x10000, 0x10000, "MIG-GPU-1/0/0").why
    with pytest.raises(Unavailable, match="request 56"):
        space.attach()
    assert not is_same(space.pair)
    space.close()
    space.close()
    assert descriptors() == before


def test_without_the_tools_device_that_is_said() -> None:
    (space,) = spaces_of(Devices(INSPECTOR, NULL, tools=Path("/nothing/there"), control=FULL), NULL, FULL)
    with pytest.raises(Unavailable, match="/nothing/there"):
        space.attach()
    space.close()


def test_a_space_is_not_held_without_the_control_descriptors_of_its_client() -> None:
    """Held alone it outlives them, and its server loses the client's share of the SMs for good (decision 027)."""
    before = descriptors()
    assert spaces_of(Devices(INSPECTOR, NULL, tools=ZERO, control=FULL), NULL) == []
    assert descriptors() == before


def test_without_a_descriptor_left_no_space_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the client's memory on the GPU until mpsd ended, and the client was not watched any more."""
    devices = Devices(INSPECTOR, NULL, tools=ZERO, control=FULL)
    assert spaces_of(devices, NULL) == []  # the first call starts what inspects others
    before, dup = opened(), os.dup
    left = [1, 2, 3]

    def dup_few(descriptor: int) -> int:
        if not left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        left.pop()
        return dup(descriptor)

    monkeypatch.setattr(os, "dup", dup_few)
    with pytest.raises(Unavailable, match="no descriptor left"):
        spaces_of(devices, NULL, NULL, FULL, FULL)
    assert opened() <= before


def test_a_space_is_closed_before_the_control_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    (space,) = spaces_of(Devices(INSPECTOR, NULL, tools=ZERO, control=FULL), NULL, FULL, FULL)
    closed = []

    def close(descriptor: int) -> None:
        closed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        os_close(descriptor)

    os_close = os.close
    monkeypatch.setattr(os, "close", close)
    space.close()
    assert closed == [str(NULL), str(FULL), str(FULL)]


class Kernel:
    """Writes into a queue's memory, as uvm_tools.c does."""

    def __init__(self, queue: DeviceQueue) -> None:
        self.entries: mmap.mmap = queue._entries
        self.control: mmap.mmap = queue._control

    def write(self, address: int) -> None:
        get, put = (struct.unpack_from("<I", self.control, at)[0] % abi.QUEUE_ENTRIES for at in (4, 12))
        if (abi.QUEUE_ENTRIES + get - put) % abi.QUEUE_ENTRIES == 1:
            at = 16 + 8 * abi.FATAL_TYPE
            struct.pack_into("<Q", self.control, at, struct.unpack_from("<Q", self.control, at)[0] + 1)
            return
        self.entries[put * 64 : put * 64 + 64] = struct.pack("<BBBBB3xQQ40x", 6, 1, 2, 1, 1, address, 0)
        self.set_put((put + 1) % abi.QUEUE_ENTRIES)

    def set_put(self, put: int) -> None:
        struct.pack_into("<II", self.control, 8, put, put)


def a_queue() -> DeviceQueue:
    return DeviceQueue(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))


def addresses(taken: Taken) -> list[int]:
    return [event.address for event in taken.events]


@given(st.lists(st.integers(0, 300), max_size=20))
def test_a_queue_gives_back_what_was_written_round_and_round(bursts: list[int]) -> None:
    queue, number = a_queue(), 0
    kernel = Kernel(queue)
    for burst in bursts:
        for each in range(burst):
            kernel.write(number + each)
        taken = queue.take()
        kept = min(burst, abi.QUEUE_ENTRIES - 1)
        assert (addresses(taken), taken.lost) == ([number + each for each in range(kept)], burst - kept)
        number += burst
    assert queue.take() == Taken()
    queue.close()


@given(st.integers(0, 2**32 - 1), st.binary(max_size=64), st.integers(0, 2**64 - 1))
def test_whatever_is_in_its_memory_is_bounded(put: int, entry: bytes, lost: int) -> None:
    queue = a_queue()
    kernel = Kernel(queue)
    kernel.entries[: len(entry)] = entry
    kernel.set_put(put)
    struct.pack_into("<Q", kernel.control, 16, lost)
    taken = queue.take()
    assert (len(taken.events) < abi.QUEUE_ENTRIES, taken.lost) == (True, lost)
    struct.pack_into("<Q", kernel.control, 16, 0)
    assert queue.take() == Taken()  # a counter that goes back is not a loss
    queue.close()


def test_a_queue_closes_once_with_its_memory() -> None:
    before = descriptors()
    for _ in range(1000):
        queue = a_queue()
        queue.take()
        queue.close()
        queue.close()
    assert descriptors() == before
