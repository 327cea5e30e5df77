"""The process that a record names, and its fate. Each client is a child; closing all its files is its end."""

import fcntl
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from children import Child
from device import REPLAYABLE, Device, Kind, Mode, Record, refusal
from fake_gpu import ABSORBED, ACCESS, CC_VIOLATION, Access, AccessType, Engine, FakeGpu, FaultType, VaSpace
from fake_gpu import REPLAYABLE as AS_REPLAYABLE
from test_sink import HOLE

NOBODY = 65534
TICK_NS = 10_000_000


def faulting_client(**access: Any) -> Any:
    """For a Child: a client with one fault; the answer is whether it was contained.  It keeps its VA space and its GPU."""

    def work() -> tuple[bool, Any]:
        device, va_space = Device(), VaSpace()
        gpu = FakeGpu(device, va_space)
        return gpu.access(HOLE, **access).absorbed, (device, va_space, gpu)

    return work


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat: when it began, in ticks after boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_record_names_the_process(device: Device) -> None:
    device.set_policy(Mode.SINK)
    child = Child(faulting_client())
    assert child.answer()
    record = device.wait(Kind.STOPPED)[0]
    assert (record.tgid, record.uid) == (child.pid, 0)
    assert record.comm == Path(f"/proc/{child.pid}/comm").read_bytes().strip()
    assert record.start_ns // TICK_NS == start_ticks(child.pid)
    child.end()
    gone = device.wait(Kind.GONE)[-1]
    assert (gone.tgid, gone.start_ns, gone.gpu_uuid[:]) == (child.pid, record.start_ns, record.gpu_uuid[:])


def test_a_record_names_the_user(device: Device) -> None:
    """As whom it runs when it faults, not as whom it opened the device."""
    device.set_policy(Mode.SINK)
    contained = faulting_client

    def work() -> tuple[bool, Any]:
        opened, va_space = Device(), VaSpace()
        gpu = FakeGpu(opened, va_space)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return gpu.access(HOLE).absorbed, (opened, va_space, gpu, contained)

    child = Child(work)
    assert child.answer()
    assert device.wait(Kind.FAULT)[0].uid == NOBODY
    child.end()


def test_a_record_carries_the_fault_packet(device: Device, va_space: VaSpace) -> None:
    device.set_policy(Mode.REPORT)
    packet = {"gpu_ns": 123_456_789, "client_id": 77, "ve_id": 5, "gpc_id": 3, "client_type": 0, "engine_type": Engine.GRAPHICS}
    with FakeGpu(device, va_space, number=2) as gpu:
        gpu.access(HOLE, FaultType.INVALID_PTE, AccessType.ATOMIC_STRONG, **packet)
    (record,) = device.drain()
    assert {name: getattr(record, name) for name in packet} == packet
    assert (record.flags, record.fault_type, record.access_type, record.reason, record.channel) == (REPLAYABLE, 2, 3, 1, 0)


# UvmEventFaultType of each FaultType; UVM has none for READ.
EVENT_TYPES = dict(zip(FaultType, (1, 2, 4, 3, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), strict=True)) | {CC_VIOLATION: 16}


@pytest.mark.parametrize("fault_type", EVENT_TYPES)
def test_a_record_has_the_types_number_in_uvms_events(device: Device, va_space: VaSpace, fault_type: int) -> None:
    device.set_policy(Mode.REPORT)
    with FakeGpu(device, va_space) as gpu:
        if fault_type == CC_VIOLATION and int(device.info().driver.partition(b".")[0]) < 560:
            assert refusal(gpu.access, HOLE, fault_type) == "EINVAL"
            return
        gpu.access(HOLE, fault_type)
    assert [each.fault_type for each in device.drain()] == [EVENT_TYPES[fault_type]]


@pytest.mark.parametrize("engine", [Engine.HOST, Engine.COPY])
def test_faults_of_copy_and_host_engines_are_contained(device: Device, va_space: VaSpace, engine: Engine) -> None:
    """The GPU cannot repeat them: UVM resumes the channel. They are reported by channel."""
    device.set_policy(Mode.SINK)
    with FakeGpu(device, va_space) as gpu:
        assert gpu.access(HOLE, flags=0, channel=1234, engine_type=engine, client_type=1).absorbed
        record = device.wait(Kind.STOPPED)[0]
    assert (record.story, record.flags & REPLAYABLE) == ("FAULT SUNK", 0)
    assert (record.channel, record.gpc_id, record.engine_type, record.client_type) == (1234, 0, engine, 1)


def test_a_mig_instance_is_named(device: Device, va_space: VaSpace) -> None:
    device.set_policy(Mode.REPORT)
    for mig_plus_one in (0, 1, 3):
        with FakeGpu(device, va_space, mig_plus_one=mig_plus_one) as gpu:
            gpu.access(HOLE)
    assert [each.gpu_instance for each in device.drain()] == [0, 1, 3]


def test_an_exempt_process_is_not_contained_and_others_are(device: Device) -> None:
    """MPS servers: who ends one ends its clients."""
    device.set_policy(Mode.SINK)

    def exempt_client() -> tuple[bool, Any]:
        with Device() as own:
            own.exempt(os.getpid())
        return faulting_client()()

    server, client = Child(exempt_client), Child(faulting_client())
    assert (server.answer(), client.answer()) == (False, True)
    found = {each.tgid: each.story for each in device.wait(Kind.STOPPED) if each.kind == Kind.FAULT}
    assert found == {server.pid: "FAULT CANCELLED EXEMPT", client.pid: "FAULT SUNK"}
    server.end()
    client.end()


def test_contained_is_not_killed(device: Device) -> None:
    """In this mode the end of the client is the daemon's to order."""
    device.set_policy(Mode.SINK)
    child = Child(faulting_client())
    assert child.answer()
    device.wait(Kind.STOPPED)
    assert os.waitpid(child.pid, os.WNOHANG) == (0, 0)
    assert child.end(signal.SIGTERM) == -signal.SIGTERM


def test_kill_mode_ends_the_client_and_nobody_else(device: Device) -> None:
    device.set_policy(Mode.SINK_KILL)
    bystander = Child(lambda: (True, VaSpace()))
    assert bystander.answer()
    child = Child(faulting_client())
    assert child.wait() == -signal.SIGKILL
    found = device.wait(Kind.GONE)
    assert [(each.kind, each.tgid) for each in found] == [(kind, child.pid) for kind in Kind]
    assert os.waitpid(bystander.pid, os.WNOHANG) == (0, 0)
    bystander.end()


def test_kill_mode_kills_a_client_of_another_user(device: Device) -> None:
    device.set_policy(Mode.SINK_KILL)

    def work() -> tuple[bool, Any]:
        opened, va_space = Device(), VaSpace()
        gpu = FakeGpu(opened, va_space)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return gpu.access(HOLE).absorbed, (opened, va_space, gpu)

    assert Child(work).wait() == -signal.SIGKILL


def test_a_client_that_dies_by_itself_is_told(device: Device) -> None:
    device.set_policy(Mode.SINK)
    child = Child(faulting_client())
    assert child.answer()
    child.end()
    assert [each.kind for each in device.wait(Kind.GONE)] == [Kind.FAULT, Kind.STOPPED, Kind.GONE]


def test_a_condemned_client_that_is_gone_is_still_named(device: Device) -> None:
    """It was killed while another process held its files: its remaining wild accesses are absorbed, and no process is ended for
    them."""
    device.set_policy(Mode.SINK)
    ours, theirs = socket.socketpair()

    def work() -> tuple[bool, Any]:
        own, va_space = Device(), VaSpace()
        gpu = FakeGpu(own, va_space)
        contained = gpu.access(HOLE).absorbed
        socket.send_fds(theirs, [b"x"], [gpu.fd, va_space.fd, va_space.mm_fd])
        return contained, (own, va_space, gpu)

    child = Child(work)
    assert child.answer()
    held = socket.recv_fds(ours, 1, 3)[1]
    ours.close()
    theirs.close()
    device.wait(Kind.STOPPED)
    assert child.end() == -signal.SIGKILL
    asked = Access(address=HOLE + (64 << 20), flags=AS_REPLAYABLE, access_type=AccessType.WRITE, reason=1)
    fcntl.ioctl(held[0], ACCESS, asked)
    assert asked.flags & ABSORBED
    assert [(each.story, each.tgid) for each in device.drain()] == [("FAULT SUNK", child.pid)]
    for fd in held:
        os.close(fd)
    assert [(each.kind, each.tgid) for each in device.wait(Kind.GONE)] == [(Kind.GONE, child.pid)]


def test_a_client_whose_owner_is_gone_when_it_faults(device: Device) -> None:
    """Another process holds its files open, as the watcher of UVM's events does: the record names no process, or the dead
    one."""
    device.set_policy(Mode.SINK)
    handed_to, from_child = os.pipe()
    inner = os.fork()
    if inner == 0:
        child_device, va_space = Device(), VaSpace()
        gpu = FakeGpu(child_device, va_space)
        helper = os.fork()
        if helper == 0:  # holds the descriptors when its parent is gone
            while os.getppid() != 1:
                time.sleep(0.01)
            gpu.access(HOLE)
            os.write(from_child, b"x")
            os._exit(0)
        os._exit(0)
    os.waitpid(inner, 0)
    assert os.read(handed_to, 1) == b"x"
    found: list[Record] = device.wait(Kind.FAULT)
    assert (found[0].tgid, found[0].story) in [(0, "FAULT SUNK"), (inner, "FAULT SUNK")]
    os.close(handed_to)
    os.close(from_child)


def test_a_va_space_that_has_released_its_memory_has_no_known_owner(device: Device, va_space: VaSpace) -> None:
    """A bottom half can be late: the process has closed the second descriptor, and its memory may be another's by then."""
    device.set_policy(Mode.SINK)
    with FakeGpu(device, va_space) as gpu:
        os.close(va_space.mm_fd)
        va_space.mm_fd = -1
        assert not gpu.access(HOLE).absorbed
    # The client of the test before may be gone only now.
    found = [(each.story, each.tgid) for each in device.wait(Kind.FAULT) if each.kind == Kind.FAULT]
    assert found == [("FAULT CANCELLED OWNER", 0)]


def test_plain_faults_leave_the_flags_alone(device: Device, va_space: VaSpace) -> None:
    """REPLAYABLE describes the packet, independent of its outcome."""
    device.set_policy(Mode.OFF)
    device.set_policy(Mode.REPORT)
    with FakeGpu(device, va_space) as gpu:
        gpu.access(HOLE, flags=AS_REPLAYABLE)
        gpu.access(HOLE, flags=0)
    ours = [each for each in device.drain() if each.tgid == os.getpid()]  # the client of the test before may be gone only now
    assert [each.flags for each in ours] == [REPLAYABLE, 0]
