"""The kernel log's device, played by a socket that keeps records apart: read by one task, whether a thread looks or not."""

import errno
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from types import SimpleNamespace

import pytest
import structlog
import trio
import trio.testing

from mpsd.faults.sources import kernel_log
from mpsd.model.fault import Observation
from mpsd.native import lib
from tests.running import running

INTERVAL = 0.00025


class Looks:
    """In the place of mpsd.native's lib: how many threads look, and how many have."""

    def __init__(self) -> None:
        self.running = self.begun = 0
        self.has_begun = threading.Event()

    def mpsd_poll(self, *args: int) -> int:
        self.running += 1
        self.begun += 1
        self.has_begun.set()
        try:
            return int(lib.mpsd_poll(*args))
        finally:
            self.running -= 1


class Kernel:
    """Writes records.  seen: the number of each Xid, as it comes."""

    def __init__(self, looks: Looks) -> None:
        self.reader, self.writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.reader.setblocking(False)
        self.looks, self.is_hurried = looks, False
        self.source: kernel_log.KernelLog | None = None
        self._send, self.seen = trio.open_memory_channel[Observation](1000)

    def add(self, number: int) -> None:
        self.writer.send(f"4,1,1,-;NVRM: Xid (PCI:0000:00:06): {number}, pid=1\n".encode())

    def hurry(self, is_hurried: bool) -> None:
        self.is_hurried = is_hurried
        if self.source is not None:
            self.source.hurry(is_hurried)

    @asynccontextmanager
    async def heard(self, interval: float = INTERVAL) -> AsyncIterator[None]:
        self.source = source = kernel_log.KernelLog(
            kernel_log.KERNEL_LOG, lambda pid: None, lambda *event: None, interval=interval
        )
        source.hurry(self.is_hurried)
        async with running(source.run, self._send.send_nowait):
            await trio.testing.wait_all_tasks_blocked()
            if self.is_hurried:
                assert await trio.to_thread.run_sync(self.looks.has_begun.wait, 5)
            yield

    async def next(self) -> int | None:
        with trio.fail_after(5):
            return (await self.seen.receive()).xid


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    looks = Looks()
    made = Kernel(looks)
    monkeypatch.setattr(kernel_log, "_open_at_end", lambda path: os.dup(made.reader.fileno()))
    monkeypatch.setattr(kernel_log, "lib", looks)
    yield made
    made.reader.close()
    made.writer.close()
    assert looks.running == 0


def loses_one(read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """The first record was overwritten before it was read, and the device reports that."""
    lost: list[bytes] = []

    def instead(descriptor: int, most: int) -> bytes:
        found = read(descriptor, most)
        if not lost:
            lost.append(found)
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return found

    return instead


@pytest.mark.parametrize("is_on", [False, True])
async def test_each_record_is_told_once_and_in_its_order(kernel: Kernel, is_on: bool) -> None:
    kernel.hurry(is_on)
    async with kernel.heard():
        for numbers in ([31], [43, 13, 45], [79]):
            for number in numbers:
                kernel.add(number)
            assert [await kernel.next() for _ in numbers] == numbers
        assert (kernel.looks.begun, kernel.seen.statistics().current_buffer_used) == (int(is_on), 0)


async def test_no_record_is_lost_or_told_twice_while_hurry_comes_and_goes(kernel: Kernel) -> None:
    numbers = list(range(1, 301))

    def write() -> None:
        for number in numbers:
            kernel.add(number)  # waits where the socket is full
            time.sleep(0.0001)

    seen: list[int | None] = []
    async with kernel.heard(), trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, write)
        while len(seen) < len(numbers):
            kernel.hurry(not kernel.is_hurried)
            seen.append(await kernel.next())
        await trio.testing.wait_all_tasks_blocked()
        assert kernel.seen.statistics().current_buffer_used == 0
    assert seen == numbers
    assert kernel.looks.begun > 1


async def test_what_wakes_no_reader_is_seen_by_looking(kernel: Kernel) -> None:
    """Such as a record before the console is written; here the reader is not woken at all."""
    device = kernel_log._Device(os.dup(kernel.reader.fileno()))
    device._either.unregister(device._device)
    source = kernel_log.KernelLog(kernel_log.KERNEL_LOG, lambda pid: None, lambda *event: None, interval=INTERVAL)
    seen = trio.Event()

    async def read() -> None:
        async with aclosing(device.records()) as records:
            async for _ in records:
                seen.set()

    with closing(device):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(source._poll, device)
            await trio.testing.wait_all_tasks_blocked()
            kernel.add(43)
            await trio.testing.wait_all_tasks_blocked()
            assert not seen.is_set()
            source.hurry(True)
            with trio.fail_after(5):
                await seen.wait()
            nursery.cancel_scope.cancel()


async def test_whoever_is_cancelled_leaves_no_thread_and_no_descriptor(kernel: Kernel) -> None:
    kernel.hurry(True)
    before = set(os.listdir("/proc/self/fd"))
    async with kernel.heard():
        began = time.monotonic()
    assert kernel.looks.running == 0
    assert time.monotonic() - began < 1
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_on", [False, True])
async def test_overwritten_records_are_a_gap(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    kernel.hurry(is_on)
    async with kernel.heard():
        monkeypatch.setattr(kernel_log.os, "read", loses_one(os.read))
        kernel.add(31)
        kernel.add(43)
        assert await kernel.next() == 43


async def test_without_a_standby_nobody_ever_looks(kernel: Kernel) -> None:
    """It is woken by the kernel, and costs nothing while it is idle."""
    async with kernel.heard():
        kernel.add(31)
        assert await kernel.next() == 31
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert kernel.looks.begun == 0


async def test_it_can_be_said_that_nobody_ever_looks(kernel: Kernel) -> None:
    async with kernel.heard(interval=0.0):
        kernel.hurry(True)
        kernel.add(31)
        assert await kernel.next() == 31
    assert kernel.looks.begun == 0


async def test_without_a_thread_it_waits_as_ever(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(kernel_log.trio, "to_thread", SimpleNamespace(run_sync=refuse))
    with structlog.testing.capture_logs() as logs:
        async with kernel.heard():
            kernel.hurry(True)
            await trio.testing.wait_all_tasks_blocked()
            kernel.add(31)
            assert await kernel.next() == 31
    assert [each["why"] for each in logs if each["event"] == "faults.not_looked"] == ["can't start new thread"]


def test_a_look_reads_nothing_tells_again_and_ends_when_it_is_told_to() -> None:
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    told, stop = os.eventfd(0), os.eventfd(0)
    ended: list[int] = []
    looking = threading.Thread(target=lambda: ended.append(lib.mpsd_poll(reader.fileno(), told, stop, 100_000)))
    try:
        looking.start()
        writer.send(b"record")
        assert os.eventfd_read(told) >= 1
        assert os.eventfd_read(told) >= 1  # it is there still
        assert reader.recv(100) == b"record"
        assert not ended
    finally:
        os.eventfd_write(stop, 1)
        looking.join(5)
    assert ended == [0]
    for each in (told, stop):
        os.close(each)
    reader.close()
    writer.close()
