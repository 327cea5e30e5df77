"""The smallest service: a sequence of numbers in GPU memory, which goes on wherever the process that computes it ends.

    python count_service.py --service count --steps 10000 --pace 0.01        # twice, in two shells, or as often as you like

Kill the process that counts: the other one continues with the interrupted step.  The result is that of an undisturbed run.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from mpsd_client import Arena, Dismissed, Layout, Service, TensorSpec, Term

SEED = 1


def next_of(value: int) -> int:
    return (value * 1664525 + 1013904223) % 2**32


class Gpu:
    """The CUDA driver, with the primary context and a stream."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context, self.stream = c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.stream), 0)

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")

    def write(self, address: int, value: int) -> None:
        """Write a value to GPU memory, and wait until it is written."""
        self.call("cuMemsetD32Async", c_uint64(address), c_uint32(value), c_size_t(1), self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def read(self, address: int) -> int:
        value = c_uint32()
        self.call("cuMemcpyDtoH_v2", byref(value), c_uint64(address), c_size_t(4))
        return value.value


class Report:
    """Writes events with their times as JSON lines."""

    def __init__(self, path: str) -> None:
        self.file = sys.stdout if path == "-" else open(path, "a", buffering=1)  # noqa: SIM115

    def __call__(self, event: str, **facts: Any) -> None:
        said = {"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()} | facts
        print(json.dumps(said), file=self.file, flush=True)


def options() -> argparse.Namespace:
    known = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known.add_argument("--service", default=os.environ.get("MPSD_SERVICE", "count"))
    known.add_argument("--steps", type=int, default=1000)
    known.add_argument("--pace", type=float, default=0.0, help="seconds between two steps")
    known.add_argument("--rank", type=int, default=0, help="who comes first: the lowest")
    known.add_argument("--heartbeat", type=float, default=0.0, help="seconds without a step after which this one is lost")
    known.add_argument("--report", default="-", help="a file for the events; - is standard output")
    known.add_argument("--every", type=int, default=100, help="a line for every so many steps")
    known.add_argument("--check", action="store_true", help="compare what is taken over with what it must be")
    return known.parse_args()


def main() -> int:
    asked = options()
    report = Report(asked.report)
    report("begin")
    service = Service(
        asked.service,
        capacity=2 << 20,
        schema={"step": "uint64"},
        rank=asked.rank,
        heartbeat=asked.heartbeat,
    )
    gpu = Gpu()
    report("context")
    arena = service.open()
    report("opened")

    @service.on_commit
    def rehearse(arena: Arena) -> None:
        """Do all that the first step would wait for, on copies of the memory, which another process may be writing."""
        service.rehearse(lambda: gpu.write(place(arena, 0), gpu.read(place(arena, 1))))
        report("warm")

    if arena.layout is not None:
        rehearse(arena)
    try:
        return serve(service, gpu, asked, report)
    except Dismissed as exc:
        report("dismissed", why=str(exc))
        return 3


def serve(service: Service, gpu: Gpu, asked: argparse.Namespace, report: Report) -> int:
    """Serve one term after another until all steps are done.  Return the exit status."""
    while True:
        report("standby")
        with service.active() as term:
            report("promoted", generation=term.generation, told_ns=term.promoted_ns, record=term.record is not None)
            step = begin(term, gpu, asked.check)
            value = count(term, gpu, step, asked, report)
            if value is not None:
                report("end", digest=value)
                return 0
        report("yielded")


def begin(term: Term, gpu: Gpu, is_checked: bool) -> int:
    """Return the last published step; later steps of the previous process are repeated."""
    if term.arena.layout is None:  # no process has built the contents yet
        build(term.arena, gpu)
    step = term.record["step"] if term.record else 0
    assert isinstance(step, int)
    if is_checked:
        found, value = gpu.read(place(term.arena, step)), SEED
        for _ in range(step):
            value = next_of(value)
        if found != value:
            raise RuntimeError(f"step {step} is {found}, and should be {value}")
    return step


def build(arena: Arena, gpu: Gpu) -> None:
    block = arena.allocate(8)
    gpu.write(block.address, SEED)
    arena.commit(Layout({"values": TensorSpec(block.offset, "uint32", (2,), (1,))}))


def place(arena: Arena, step: int) -> int:
    """Return the address of a step's value.  Steps alternate between two places: an interrupted step spoils only the place that
    is not needed, and can be repeated."""
    return arena["values"].address + 4 * (step % 2)


def count(term: Term, gpu: Gpu, step: int, asked: argparse.Namespace, report: Report) -> int | None:
    """Count from the step after this one on.  Return the last value; None if another process is to continue."""
    value = gpu.read(place(term.arena, step))
    is_first = True
    while step < asked.steps:
        if term.is_over:
            return None
        value, step = next_of(value), step + 1
        gpu.write(place(term.arena, step), value)  # returns when the GPU has finished it,
        if is_first:
            report("first_step", step=step)
            is_first = False
        term.publish(step=step)  # so that only finished steps are published
        if step % asked.every == 0:
            report("step", n=step, value=value)
        time.sleep(asked.pace)
    return value


if __name__ == "__main__":
    sys.exit(main())
