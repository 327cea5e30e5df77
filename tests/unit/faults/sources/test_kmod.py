"""The reader of /dev/mpsd-fault, on a FIFO that stands for it, with the test's own ioctls, and without a device."""

import errno
import os
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from mpsd.faults.sources.kmod import Kmod
from mpsd.faults.sources.kmod_policy import KmodPolicy
from mpsd.faults.sources.kmod_records import SET_POLICY, Mode
from tests.running import running
from tests.unit.faults.incident_world import IncidentWorld
from tests.unit.faults.sources.fake_module import FakeModule
from tests.unit.faults.sources.test_kmod_records import record


@pytest.fixture
def channel(tmp_path):
    """Return a path, and a descriptor that writes there."""
    path = tmp_path / "mpsd-fault"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # opened for both, it does not wait for a reader
    yield path, writer
    os.close(writer)


async def test_records_are_observations(channel):
    path, writer = channel
    send, receive = trio.open_memory_channel(10)
    source = Kmod(path, ioctl=FakeModule().ioctl)
    async with running(source.run, send.send_nowait):
        await trio.testing.wait_all_tasks_blocked()
        assert source.absent == ""
        os.write(writer, record(tgid=1) + record(tgid=2, kind=77) + record(tgid=3, lost=5, flags=8))
        with trio.fail_after(5):
            pids = [(await receive.receive()).process.pid for _ in range(2)]
    assert pids == [1, 3]
    assert source.lost == 5
    assert source.absent == "stopped"


async def test_another_version_ends_it_with_a_clear_word(channel):
    path, writer = channel
    source = Kmod(path, ioctl=FakeModule().ioctl)
    with structlog.testing.capture_logs() as logs, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.run, lambda seen: None)
            await trio.testing.wait_all_tasks_blocked()
            os.write(writer, record(major=2))
    assert [entry["event"] for entry in logs] == ["faults.kmod", "faults.no_kmod"]
    assert source.absent == "a record of version 2 of the fault channel, mpsd knows 1"


async def test_a_module_that_goes_ends_it(tmp_path):
    path = tmp_path / "mpsd-fault"
    os.mkfifo(path)
    source = Kmod(path, ioctl=FakeModule().ioctl)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.run, lambda seen: None)
            await trio.testing.wait_all_tasks_blocked()
            os.close(os.open(path, os.O_WRONLY))
    assert source.absent == "the module has gone"


async def test_without_the_module_nothing_is_said_aloud(tmp_path):
    source = Kmod(tmp_path / "mpsd-fault")
    with structlog.testing.capture_logs() as logs:
        await source.run(lambda seen: None)
    assert [entry["log_level"] for entry in logs] == ["debug"]
    assert "not patched" in source.absent


async def test_a_device_that_is_another_is_left():
    """It does not know the first ioctl."""
    source = Kmod(Path("/dev/null"))
    with structlog.testing.capture_logs() as logs, trio.fail_after(5):
        await source.run(lambda seen: None)
    assert [entry["event"] for entry in logs] == ["faults.no_kmod"]
    assert "Inappropriate ioctl" in source.absent


async def test_a_module_of_another_version_is_left(channel):
    path, _ = channel
    module = FakeModule(major=2)
    source = Kmod(path, ioctl=module.ioctl)
    with structlog.testing.capture_logs() as logs, trio.fail_after(5):
        await source.run(lambda seen: None)
    assert [entry["event"] for entry in logs] == ["faults.no_kmod"]
    assert source.absent.startswith("the module speaks version 2")


async def test_the_policy_is_in_force_as_long_as_it_listens(channel, tmp_path):
    path, _ = channel
    world, module = IncidentWorld(tmp_path), FakeModule()
    world.domain().servers = {}
    policy = KmodPolicy(world.pool, Mode.CONTAIN)
    source = Kmod(path, policy, module.ioctl)
    async with running(source.run, lambda seen: None):
        await trio.testing.wait_all_tasks_blocked()
        assert (module.told, policy.absent) == ([("policy", Mode.CONTAIN)], "")
    policy.configure(Mode.OFF)
    assert (module.told, policy.absent) == ([("policy", Mode.CONTAIN)], "the module is not loaded")


async def test_a_module_that_takes_no_policy_is_read_all_the_same(channel, tmp_path):
    path, writer = channel
    world, module = IncidentWorld(tmp_path), FakeModule()
    world.domain().servers = {}
    module.refuses[SET_POLICY] = errno.EBADF
    send, receive = trio.open_memory_channel(10)
    source = Kmod(path, KmodPolicy(world.pool, Mode.CONTAIN), module.ioctl)
    async with running(source.run, send.send_nowait):
        os.write(writer, record(tgid=1))
        with trio.fail_after(5):
            assert (await receive.receive()).process.pid == 1
        assert source.absent == ""


async def test_a_device_that_it_may_not_write_is_read(monkeypatch):
    """As by the rules of a cgroup for devices; then its ioctls are refused."""
    tried = []
    real = os.open

    def opened(path, flags):
        tried.append(flags & os.O_ACCMODE)
        if flags & os.O_RDWR:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real(path, flags)

    monkeypatch.setattr(os, "open", opened)
    source = Kmod(Path("/dev/null"))
    with trio.fail_after(5):
        await source.run(lambda seen: None)
    assert tried == [os.O_RDWR, os.O_RDONLY]
    assert "Inappropriate ioctl" in source.absent
