"""Everything at once for some seconds: what locks and lifetimes are for.  The kernel's log is looked at as everywhere."""

import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import modules
from children import Child
from device import RING_RECORDS, Device, Kind, Mode
from fake_gpu import NO_MEMORY, PAGE_2M, PAGE_64K, FakeGpu, FaultType, VaSpace
from fake_gpu import REPLAYABLE as AS_REPLAYABLE
from test_sink import HOLE

SECONDS = 6.0
MOST_SECONDS = 120.0
IsOver = Callable[[int], bool]  # takes the rounds so far
Work = Callable[[random.Random, IsOver], int]


def run_all(works: list[Work]) -> list[int]:
    """Run each in a separate process until the time is over and each has made a round; return the number of rounds of each."""
    began = time.monotonic()
    have_worked = mmap.mmap(-1, len(works))  # shared with the children

    def bound(number: int, work: Work) -> Callable[[], Any]:
        def is_over(rounds: int) -> bool:
            have_worked[number] = rounds > 0
            seconds = time.monotonic() - began
            return seconds > MOST_SECONDS or (seconds > SECONDS and all(have_worked[:]))

        return lambda: work(random.Random(number), is_over)

    children = [Child(bound(number, work)) for number, work in enumerate(works)]
    rounds = [child.answer() for child in children]
    for child in children:
        assert child.end() == -signal.SIGKILL
    return rounds


def inject(chance: random.Random, is_over: IsOver) -> int:
    rounds = 0
    with Device() as device:
        while not is_over(rounds):
            for _ in range(chance.randrange(1, 200)):
                device.inject(chance.randrange(1, 1000))
                rounds += 1
    return rounds


def read_and_check(chance: random.Random, is_over: IsOver) -> int:
    """Check that sequences have no gap but the reported ones."""
    rounds = 0
    while not is_over(rounds):
        with Device() as device:
            expected = None
            for _ in range(chance.randrange(1, 20)):
                for record in device.read(chance.randrange(1, 2 * RING_RECORDS)):
                    if expected is not None:
                        assert record.sequence == expected + record.lost
                    expected = record.sequence + 1
                    rounds += 1
    return rounds


def open_and_close(chance: random.Random, is_over: IsOver) -> int:
    rounds = 0
    while not is_over(rounds):
        opened = [Device(chance.choice([os.O_RDONLY, os.O_RDWR])) for _ in range(chance.randrange(1, 30))]
        for device in opened:
            device.close()
        rounds += len(opened)
    return rounds


def change_policy(chance: random.Random, is_over: IsOver) -> int:
    rounds = 0
    with Device() as device:
        while not is_over(rounds):
            mode = chance.choice([Mode.OFF, Mode.REPORT, Mode.SINK])
            device.set_policy(mode, chance.randrange(1, 9), 65536 << chance.randrange(10))
            rounds += 1
    return rounds


def fault(chance: random.Random, is_over: IsOver) -> int:
    """Clients that come, fault here and there, and go; both kinds of fault at once would need threads: see below."""
    rounds = 0
    with Device() as device:
        while not is_over(rounds):
            with VaSpace() as va_space, FakeGpu(device, va_space, chance.randrange(8)) as gpu:
                va_space.reserve(HOLE, 64 * PAGE_2M)
                for _ in range(chance.randrange(1, 30)):
                    stray(chance, gpu)
                    rounds += 1
    return rounds


def stray(chance: random.Random, gpu: FakeGpu) -> None:
    gpu.access(
        HOLE + chance.randrange(128 * PAGE_2M // PAGE_64K) * PAGE_64K,
        chance.choice(list(FaultType)),
        flags=chance.choice([0, AS_REPLAYABLE, AS_REPLAYABLE | NO_MEMORY]),
    )


def map_and_fault(chance: random.Random, is_over: IsOver) -> int:
    """Mappings come and go where windows are laid."""
    rounds = 0
    with Device() as device, VaSpace() as va_space, FakeGpu(device, va_space) as gpu:
        va_space.reserve(HOLE, 16 * PAGE_2M)
        mapped: set[int] = set()
        while not is_over(rounds):
            place = HOLE + chance.randrange(16) * PAGE_2M
            if place in mapped:
                gpu.unmap(place)
                mapped.remove(place)
            else:
                gpu.map(place, PAGE_2M, chance.choice([PAGE_64K, PAGE_2M]))
                mapped.add(place)
            stray(chance, gpu)
            rounds += 1
    return rounds


def test_injectors_readers_policies_and_faults_at_once(device: Device) -> None:
    works: list[Work] = [inject, read_and_check, read_and_check, open_and_close, change_policy, fault, fault, map_and_fault]
    before = modules.users()
    rounds = run_all(works)
    assert all(rounds), list(zip([each.__name__ for each in works], rounds, strict=True))
    assert modules.users() == before


def test_both_bottom_halves_fault_on_one_gpu_at_once(device: Device) -> None:
    """UVM serves faults that can be repeated and those that cannot in two threads, under the same lock for reading."""
    device.set_policy(Mode.SINK, max_windows=100)

    def race(chance: random.Random, is_over: IsOver) -> int:
        rounds = 0
        while not is_over(rounds):
            with Device() as own, VaSpace() as va_space, FakeGpu(own, va_space) as gpu:
                other = os.fork()
                for number in range(24):
                    gpu.access(HOLE + number * PAGE_2M, flags=AS_REPLAYABLE if other else 0)
                if other == 0:
                    os._exit(0)
                os.waitpid(other, 0)
                assert gpu.is_sparse(HOLE, PAGE_2M)
                rounds += 1
        return rounds

    (rounds,) = run_all([race])
    assert rounds > 0
    kinds = [each.kind for each in device.drain()]
    assert kinds[-1] == Kind.GONE


def test_clients_that_are_killed_while_they_fault(device: Device) -> None:
    """At any moment: the VA space, the page tables and the queue go in UVM's order, and each condemned client is reported."""
    device.set_policy(Mode.SINK)
    chance = random.Random(7)

    def work() -> bool:
        return bool(fault(random.Random(os.getpid()), lambda rounds: False))

    until = time.monotonic() + SECONDS
    rounds = 0
    while rounds <= 10 or time.monotonic() < until:
        child = Child(work)
        time.sleep(chance.random() / 10)  # nothing to wait for: any moment will do
        assert child.end() == -signal.SIGKILL
        rounds += 1
    with VaSpace() as va_space, FakeGpu(device, va_space) as gpu:
        device.drain()
        assert gpu.access(HOLE).absorbed
        device.wait(Kind.STOPPED)


def test_kill_mode_again_and_again(device: Device) -> None:
    device.set_policy(Mode.SINK_KILL)

    def work() -> tuple[bool, Any]:
        own, va_space = Device(), VaSpace()
        gpu = FakeGpu(own, va_space)
        return gpu.access(HOLE).absorbed, (own, va_space, gpu)

    for _ in range(20):
        child = Child(work)
        assert child.wait() == -signal.SIGKILL
        assert [each.kind for each in device.wait(Kind.GONE)] == [Kind.FAULT, Kind.STOPPED, Kind.GONE]
