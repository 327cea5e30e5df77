"""The daemon's reader, mpsd/faults/sources/kmod.py, on the real device under trio."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing
from device import RING_RECORDS, Device, Mode
from fake_gpu import FakeGpu, VaSpace
from guest_run import SLOWDOWN
from test_clients import start_ticks
from test_sink import HOLE

from mpsd.faults.sources.kmod import Kmod
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.process import ProcessId

DEADLINE_SECONDS = 20 * SLOWDOWN


@dataclass
class Heard:
    """What a running reader published."""

    reader: Kmod
    send: trio.MemorySendChannel[Observation]
    receive: trio.MemoryReceiveChannel[Observation]
    all: list[Observation] = field(default_factory=list)

    async def next(self) -> Observation:
        with trio.fail_after(DEADLINE_SECONDS):
            return await self.receive.receive()


@asynccontextmanager
async def listening() -> AsyncIterator[Heard]:
    """A reader that has opened the device and waits, until the block ends."""
    send, receive = trio.open_memory_channel[Observation](4 * RING_RECORDS)
    heard = Heard(Kmod(), send, receive)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heard.reader.run, send.send_nowait)
        with trio.fail_after(DEADLINE_SECONDS):
            while heard.reader.absent:
                await trio.lowlevel.checkpoint()
        yield heard
        nursery.cancel_scope.cancel()


async def test_it_wakes_for_a_record(device: Device) -> None:
    async with listening() as heard:
        await trio.testing.wait_all_tasks_blocked()
        device.inject(4242, 0x7F00_0000_0000)
        seen = await heard.next()
    assert (seen.source, seen.fault_class, seen.address) == (Source.KMOD, FaultClass.MMU, 0x7F00_0000_0000)
    assert seen.process is not None
    assert seen.process.pid == 4242
    assert heard.reader.absent == "stopped"


async def test_a_contained_fault_is_proof_against_its_process(device: Device, va_space: VaSpace, gpu: FakeGpu) -> None:
    async with listening() as heard:
        assert gpu.access(HOLE).absorbed
        fault = await heard.next()
        stopped = await heard.next()
        gpu.close()
        gone = await heard.next()
    me = ProcessId(os.getpid(), start_ticks(os.getpid()))
    assert fault.process == stopped.process == gone.process == me
    assert (fault.is_proof, stopped.is_proof, gone.is_proof) == (True, False, False)
    assert (fault.address, fault.access) == (HOLE, "write")
    assert fault.gpu == "GPU-6d707364-2d6d-6164-652d-75702d303000"  # b"mpsd-made-up-00\0"
    assert "contained" in fault.text
    assert f"pid {me.pid} (" in fault.text
    assert fault.seen_ns <= stopped.seen_ns <= gone.seen_ns


async def test_it_counts_what_it_could_not_read(device: Device) -> None:
    """3,000 records while it does not run: exactly 1,976 are lost, and it goes on."""
    async with listening() as heard:
        for _ in range(3000):  # no checkpoint in here: the reader stands still
            device.inject()
        for _ in range(RING_RECORDS):
            await heard.next()
        assert heard.reader.lost == 3000 - RING_RECORDS
        device.inject(77)
        seen = await heard.next()
        assert seen.process is not None
        assert seen.process.pid == 77


async def test_two_readers_hear_the_same(device: Device) -> None:
    async with listening() as one, listening() as other:
        for number in range(1, 11):
            device.inject(number)
        texts = [[(await heard.next()).text for _ in range(10)] for heard in (one, other)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 10


async def test_cancelled_it_lets_the_module_go(device: Device) -> None:
    """The device's fixture unloads at the end of this file: it fails where a descriptor is left."""
    import modules

    before = modules.users()
    async with listening():
        assert modules.users() == before + 1
    assert modules.users() == before


async def test_it_reads_under_any_policy(device: Device, va_space: VaSpace) -> None:
    async with listening() as heard:
        for mode, story in ((Mode.REPORT, "cancelled"), (Mode.SINK, "contained")):
            device.set_policy(mode)
            with FakeGpu(device, va_space) as gpu:
                gpu.access(HOLE)
                assert story in (await heard.next()).text
