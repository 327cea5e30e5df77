"""/dev/mpsd-fault as kmod/include/mpsd_fault.h promises it, with records that tests inject."""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import threading
import time

import modules
import pytest
from device import (
    EXEMPT,
    INFO,
    INJECT,
    INJECTED,
    LOST,
    PATH,
    POLICY,
    RECORD_BYTES,
    RING_RECORDS,
    WINDOW_MAX,
    Action,
    Device,
    Info,
    Kind,
    Mode,
    Policy,
    Record,
    Target,
    command,
    refusal,
)  # fmt: skip
from guest_run import SLOWDOWN

WAIT_SECONDS = 10 * SLOWDOWN


def test_the_device_belongs_to_root(device: Device) -> None:
    assert os.stat(PATH).st_mode & 0o777 == 0o600
    assert os.stat(PATH).st_uid == 0


def test_it_says_what_it_is(device: Device) -> None:
    info = device.info()
    assert (info.major, info.record_bytes, info.ring_records) == (1, RECORD_BYTES, RING_RECORDS)
    assert info.driver[:1].isdigit()


def test_empty_is_eagain_and_not_readable(device: Device) -> None:
    assert refusal(os.read, device.fd, RECORD_BYTES) == "EAGAIN"
    poll = select.poll()
    poll.register(device.fd, select.POLLIN)
    assert poll.poll(0) == []


def test_an_injected_record_is_read_as_it_was_written(device: Device) -> None:
    before = device.info().sequence
    began_ns = time.monotonic_ns()
    device.inject(4242, 0x7F00_DEAD_0000)
    (record,) = device.read()
    assert (record.size, record.major, record.kind) == (RECORD_BYTES, 1, Kind.FAULT)
    assert record.flags == INJECTED
    assert (record.tgid, record.address) == (4242, 0x7F00_DEAD_0000)
    assert record.sequence == before + 1 == device.info().sequence
    assert began_ns <= record.monotonic_ns <= time.monotonic_ns()
    assert record.action == Action.CANCELLED
    assert bytes(record.reserved) == bytes(len(record.reserved))


def test_a_waiting_record_is_readable_once(device: Device) -> None:
    poll = select.poll()
    poll.register(device.fd, select.POLLIN)
    device.inject()
    assert poll.poll(0) == [(device.fd, select.POLLIN)]
    assert len(device.read()) == 1
    assert poll.poll(0) == []


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES - 1])
def test_a_buffer_that_takes_no_record_is_refused(device: Device, size: int) -> None:
    device.inject()
    assert refusal(os.read, device.fd, size) == "EINVAL"
    assert len(device.read()) == 1


@pytest.mark.parametrize(("size", "records"), [(RECORD_BYTES, 1), (2 * RECORD_BYTES - 1, 1), (3 * RECORD_BYTES, 3), (65536, 5)])
def test_a_read_gives_whole_records(device: Device, size: int, records: int) -> None:
    for number in range(5):
        device.inject(number + 1)
    data = os.read(device.fd, size)
    assert len(data) == records * RECORD_BYTES
    assert [Record.from_buffer_copy(data, at).tgid for at in range(0, len(data), RECORD_BYTES)] == list(range(1, records + 1))
    assert len(device.drain()) == 5 - records


def test_a_buffer_that_is_not_there_is_efault(device: Device) -> None:
    """And the device goes on: the record is there for the next read, or it would be lost without being counted."""
    libc = ctypes.CDLL(None, use_errno=True)
    device.inject(6)
    assert libc.read(device.fd, ctypes.c_void_p(8), ctypes.c_size_t(RECORD_BYTES)) == -1
    assert ctypes.get_errno() == errno.EFAULT
    device.inject(7)
    assert [each.tgid for each in device.drain()] == [6, 7]


def test_a_buffer_that_ends_early_keeps_the_record_that_did_not_fit(device: Device) -> None:
    """Half of what was asked for lies beyond the end of the memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    assert libc.munmap(ctypes.c_void_p(at + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)) == 0
    for number in range(3):
        device.inject(number + 1)
    room = RECORD_BYTES + RECORD_BYTES // 2
    assert libc.read(device.fd, ctypes.c_void_p(at + mmap.PAGESIZE - room), ctypes.c_size_t(3 * RECORD_BYTES)) == RECORD_BYTES
    assert [each.tgid for each in device.drain()] == [2, 3]


def test_two_threads_that_read_one_descriptor_share_its_records(device: Device) -> None:
    """None is read twice, and none is lost."""
    found: list[Record] = []
    with Device() as shared:
        for number in range(RING_RECORDS):
            device.inject(number + 1)
        threads = [threading.Thread(target=lambda: found.extend(shared.drain())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert sorted(each.tgid for each in found) == list(range(1, RING_RECORDS + 1))


def test_a_blocking_read_waits_for_a_record(device: Device) -> None:
    with Device(os.O_RDWR) as waiting:
        found: list[Record] = []
        thread = threading.Thread(target=lambda: found.extend(waiting.read(1)))
        thread.start()
        wait_until_asleep(thread)
        device.inject(99)
        thread.join(WAIT_SECONDS)
        assert [each.tgid for each in found] == [99]


def wait_until_asleep(thread: threading.Thread) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while True:
        with open(f"/proc/self/task/{thread.native_id}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return
        assert time.monotonic() < until, "the reader does not wait"


def test_a_reader_begins_at_the_newest(device: Device) -> None:
    device.inject(1)
    with Device() as late:
        assert late.read() == []
        device.inject(2)
        assert [each.tgid for each in late.read()] == [2]
    assert [each.tgid for each in device.read()] == [1, 2]


def test_many_readers_each_have_their_own_place(device: Device) -> None:
    readers = [Device() for _ in range(50)]
    for number in range(20):
        device.inject(number + 1)
        readers[number].read()
    expected = {number: 19 - number if number < 20 else 20 for number in range(50)}
    assert {number: len(reader.drain()) for number, reader in enumerate(readers)} == expected
    for reader in readers:
        reader.close()


def test_overflow_is_counted_exactly(device: Device) -> None:
    """The module waits for no reader: 3,000 records into 1,024 places."""
    target = Target(1, 0, 0)
    for _ in range(3000):
        fcntl.ioctl(device.fd, INJECT, target)
    records = device.drain()
    assert len(records) == RING_RECORDS
    assert records[0].lost == 3000 - RING_RECORDS
    assert records[0].flags == INJECTED | LOST
    assert all(not each.lost and each.flags == INJECTED for each in records[1:])
    assert [each.sequence - records[0].sequence for each in records] == list(range(RING_RECORDS))


def test_one_record_less_than_the_ring_loses_nothing(device: Device) -> None:
    for _ in range(RING_RECORDS):
        device.inject()
    records = device.drain()
    assert (len(records), records[0].lost) == (RING_RECORDS, 0)


def test_a_slow_reader_costs_nobody_else_a_record(device: Device) -> None:
    with Device() as slow:
        found = []
        for number in range(RING_RECORDS + 500):
            device.inject(number + 1)
            found += device.read()
        assert [each.tgid for each in found] == list(range(1, RING_RECORDS + 501))
        assert not any(each.lost for each in found)
        assert slow.read(1)[0].lost == 500


@pytest.mark.parametrize(
    ("mode", "windows", "window_bytes"),
    [
        (4, 64, 2 << 20),
        (0xFFFF_FFFF, 64, 2 << 20),
        (Mode.SINK, 64, 0),
        (Mode.SINK, 64, 3 << 20),
        (Mode.SINK, 64, 32 << 10),
        (Mode.SINK, 64, 2 * WINDOW_MAX),
        (Mode.SINK, 64, 1 << 63),
        (Mode.SINK, 0, 2 << 20),
        (Mode.SINK, 0xFFFF_FFFF, 2 << 20),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(device: Device, mode: int, windows: int, window_bytes: int) -> None:
    assert refusal(device.ask, POLICY, Policy(mode, windows, window_bytes)) == "EINVAL"


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("window_bytes", [64 << 10, 2 << 20, WINDOW_MAX])
def test_a_policy_that_makes_sense_is_taken(device: Device, mode: Mode, window_bytes: int) -> None:
    device.set_policy(mode, 1, window_bytes)


@pytest.mark.parametrize(
    "number",
    [
        command(2, 0xE7, Info),
        command(1, 0xE0, Info),  # the number is known, the direction is not
        command(2, 0xE0, Target),  # nor this size
        command(2, 0x01, Info),
        0,
        0xFFFF_FFFF,
    ],
)
def test_an_unknown_command_is_enotty(device: Device, number: int) -> None:
    assert refusal(fcntl.ioctl, device.fd, number, bytearray(128)) == "ENOTTY"


@pytest.mark.parametrize("number", [INFO, POLICY, EXEMPT, INJECT])
def test_a_pointer_that_leads_nowhere_is_efault(device: Device, number: int) -> None:
    assert refusal(fcntl.ioctl, device.fd, number, 8) == "EFAULT"


@pytest.mark.parametrize("flags", [1, 1 << 31])
def test_unknown_flags_are_refused(device: Device, flags: int) -> None:
    assert refusal(device.inject, 1, 0, flags) == "EINVAL"
    assert refusal(device.exempt, os.getpid(), flags) == "EINVAL"
    assert device.read() == []


def test_a_process_that_is_gone_cannot_be_exempted(device: Device) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert refusal(device.exempt, child) == "ESRCH"
    assert refusal(device.exempt, -1) == "EINVAL"


def test_who_may_only_read_changes_nothing(device: Device) -> None:
    with Device(os.O_RDONLY | os.O_NONBLOCK) as reader:
        assert reader.info().major == 1
        assert refusal(reader.set_policy, Mode.SINK) == "EBADF"
        assert refusal(reader.exempt, os.getpid()) == "EBADF"
        assert refusal(reader.inject) == "EBADF"
        device.inject(5)
        assert [each.tgid for each in reader.read()] == [5]


def test_who_may_only_read_is_told_of_unknown_commands(device: Device) -> None:
    with Device(os.O_RDONLY | os.O_NONBLOCK) as reader:
        assert refusal(fcntl.ioctl, reader.fd, command(2, 0xE7, Info), bytearray(128)) == "ENOTTY"


def test_a_descriptor_alone_does_not_let_change_anything(device: Device) -> None:
    """It may have been inherited, or passed on: what becomes of faults is a matter of all users."""
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        calls = (lambda: device.set_policy(Mode.SINK), lambda: device.exempt(os.getpid()), device.inject)
        os._exit(0 if device.info().major == 1 and all(refusal(call) == "EPERM" for call in calls) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert device.read() == []


def test_exemptions_of_processes_that_are_gone_make_room(device: Device) -> None:
    """Otherwise 64 restarts of an MPS server would fill the table."""
    for _ in range(80):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        device.exempt(child)
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_the_module_stays_while_a_reader_has_it_open(device: Device) -> None:
    assert modules.users() >= 1
    with pytest.raises(modules.subprocess.CalledProcessError):
        modules.unload()


def test_a_reader_that_dies_leaves_nothing(device: Device) -> None:
    before = modules.users()
    child = os.fork()
    if child == 0:
        with Device(os.O_RDWR) as reader:
            reader.read(1)  # for ever
        os._exit(1)
    until = time.monotonic() + WAIT_SECONDS
    while modules.users() == before:
        assert time.monotonic() < until, "the child does not open it"
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert modules.users() == before
    device.inject(3)
    assert [each.tgid for each in device.read()] == [3]


def test_it_cannot_be_opened_from_another_pid_namespace(device: Device) -> None:
    """Its records number processes as the first namespace does; elsewhere those numbers mean others."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        if libc.unshare(0x20000000):  # CLONE_NEWPID
            os._exit(2)
        inner = os.fork()
        if inner == 0:
            os._exit(0 if refusal(os.open, PATH, os.O_RDONLY) == "EXDEV" else 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
