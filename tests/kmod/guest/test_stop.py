"""STOPPED: the module's steps before it, and what it does not promise. The self test plays RM."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from device import Device, Kind, Mode
from fake_gpu import ANSWER, CHANNEL, PAGE_2M, UNREGISTER, FakeGpu, VaSpace
from test_sink import HOLE

MANAGED = HOLE + (1 << 40)
WAIT_SECONDS = 20.0  # RM answers after 40 by itself
SOON_SECONDS = 5.0  # what does not wait for RM is over by then, emulated


@pytest.fixture
def busy(device: Device, va_space: VaSpace) -> Iterator[FakeGpu]:
    """A made-up GPU on which the client has a channel that is not idle."""
    device.set_policy(Mode.SINK)
    with FakeGpu(device, va_space, flags=CHANNEL) as made:
        yield made


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.01)


@contextmanager
def running(work: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def begin_to_stop(gpu: FakeGpu) -> None:
    assert gpu.access(HOLE).absorbed
    wait_until(lambda: gpu.channel().stops, "RM was not told to stop the channel")


def is_waiting_uninterruptibly(thread: threading.Thread) -> bool:
    try:
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    return state.rpartition(")")[2].split()[0] == "D"


def test_stopped_comes_when_rm_returns_and_whatever_it_did(device: Device, busy: FakeGpu) -> None:
    """RM does not report whether it has succeeded, and this one has done nothing at all: STOPPED proves nothing."""
    begin_to_stop(busy)
    assert [each.kind for each in device.drain()] == [Kind.FAULT]
    busy.channel(ANSWER)
    assert [each.kind for each in device.wait(Kind.STOPPED)] == [Kind.STOPPED]
    state = busy.channel()
    assert (state.stops, state.is_bound) == (1, 0)


def test_what_still_runs_when_its_channels_are_stopped_is_contained(device: Device, busy: FakeGpu) -> None:
    """Under MPS work that has begun goes on, and strays: it gets windows until the address space goes."""
    begin_to_stop(busy)
    busy.channel(ANSWER)
    device.wait(Kind.STOPPED)
    assert busy.access(HOLE + 8 * PAGE_2M).absorbed
    assert [each.story for each in device.drain()] == ["FAULT SUNK"]


def test_faults_are_served_while_rm_waits_and_the_client_unmaps(device: Device, va_space: VaSpace, busy: FakeGpu) -> None:
    """A thread in munmap has mmap_lock and wants the VA space's lock; the bottom half, for all clients, wants mmap_lock."""
    va_space.manage(MANAGED, PAGE_2M)
    begin_to_stop(busy)
    with running(va_space.unmanage) as unmapping:
        wait_until(lambda: not unmapping.is_alive() or is_waiting_uninterruptibly(unmapping), "munmap does not begin")
        began = time.monotonic()
        assert busy.access(HOLE + 8 * PAGE_2M).absorbed
        unmapping.join(SOON_SECONDS)
        assert not unmapping.is_alive()
        assert time.monotonic() - began < SOON_SECONDS
        assert not busy.channel().has_answered
        busy.channel(ANSWER)
    device.wait(Kind.STOPPED)


def test_a_channel_that_the_client_gives_back_stays_until_rm_has_stopped_it(device: Device, busy: FakeGpu) -> None:
    """RM would otherwise be asked to stop what it has freed."""
    begin_to_stop(busy)
    with running(lambda: busy.channel(UNREGISTER)) as unregistering:
        wait_until(lambda: is_waiting_uninterruptibly(unregistering), "the channel does not wait for RM")
        busy.channel(ANSWER)
    device.wait(Kind.STOPPED)
    assert not busy.channel().is_bound


def test_a_channel_that_is_gone_is_not_stopped(device: Device, busy: FakeGpu) -> None:
    busy.channel(UNREGISTER)
    assert busy.access(HOLE).absorbed
    device.wait(Kind.STOPPED)
    assert busy.channel().stops == 0


def test_the_end_of_the_address_space_waits_for_the_stop(device: Device, busy: FakeGpu) -> None:
    begin_to_stop(busy)
    busy.close()
    assert [each.kind for each in device.wait(Kind.GONE)] == [Kind.FAULT, Kind.STOPPED, Kind.GONE]
