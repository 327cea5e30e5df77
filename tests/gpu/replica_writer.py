"""A member of a service that writes its arena at a given rate, and copies private memory as fast as the GPU can.

    replica_writer.py SERVICE BYTES BYTES_PER_SECOND [DIRECTORY EVERY]

With a directory it takes an image each EVERY seconds, and a member on another GPU keeps a replica.  Prints JSON lines: "rate"
each second, with the steps per second, and the bytes of the arena that were written per second.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mpsd_client import Arena, ImageSchedule, Layout, Service, TensorSpec, Term

from tests.gpu.image_client import CUDA_BLOCKS, KERNELS, THREADS, _allocated, _call, _use_gpu

PIECE = 64 << 20  # written at a time, one place after the other
WORK_BYTES = 2 << 30  # what each step copies: a millisecond or more
SMALL = 1 << 30  # arenas below this are the simulator's
RATE_SECONDS = 1.0


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


class Writer:
    """Guards the balance between time and written bytes.  The GPU always has the next step queued."""

    def __init__(self, arena: Arena, size: int, bytes_per_second: int) -> None:
        module = _call("cuModuleLoadData", KERNELS.read_bytes() + b"\0")
        self._fill = _call("cuModuleGetFunction", module, b"fill")
        is_small = size < SMALL
        self._work, self._piece = (1 << 20, 2 << 20) if is_small else (WORK_BYTES, PIECE)
        self._from, self._to = _allocated(self._work), _allocated(self._work)
        self._ends = [_call("cuEventCreate", 2) for _ in range(2)]  # 2: without times
        self._size, self._rate, self._at, self.steps, self.written = size, bytes_per_second, 0, 0, 0
        self._block = arena.allocate(size)
        self._write(0, size)
        _call("cuCtxSynchronize")
        arena.commit(Layout({"all": TensorSpec(self._block.offset, "uint8", (size,), (1,))}))
        self._began = time.monotonic()

    def _write(self, at: int, size: int) -> None:
        values = (self._block.address + at, size // 8, self.steps), (ctypes.c_uint64,) * 3
        _call("cuLaunchKernel", self._fill, CUDA_BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, values, 0)

    def step(self) -> None:
        self.steps += 1
        if self.written < (time.monotonic() - self._began) * self._rate:
            self._write(self._at, self._piece)
            self.written += self._piece
            self._at = (self._at + self._piece) % (self._size // self._piece * self._piece)
        _call("cuMemcpyDtoDAsync", self._to, self._from, self._work, 0)
        _call("cuEventRecord", self._ends[self.steps % 2], 0)
        _call("cuEventSynchronize", self._ends[(self.steps + 1) % 2])  # of the step before


def serve(term: Term, size: int, bytes_per_second: int) -> None:
    writer = Writer(term.arena, size, bytes_per_second)
    say("serves")
    before: tuple[float, int, int] = (time.monotonic(), 0, 0)
    while not term.is_over:
        writer.step()
        term.publish(step=writer.steps)
        if (passed := (now := time.monotonic()) - before[0]) >= RATE_SECONDS:
            say("rate", steps=(writer.steps - before[1]) / passed, written=(writer.written - before[2]) / passed)
            before = (now, writer.steps, writer.written)


def main(name: str, size: str, bytes_per_second: str, directory: str = "", every: str = "1") -> None:
    more: dict[str, Any] = {}
    if directory:
        more = {"images": ImageSchedule(float(every), Path(directory)), "replica_lag": 60.0}
    with Service(name, capacity=int(size) + (4 << 20), schema={"step": "uint64"}, **more) as service:
        _use_gpu()
        service.open()
        while (term := service.standby()) is None:
            pass
        with term:
            serve(term, int(size), int(bytes_per_second))


if __name__ == "__main__":
    main(*sys.argv[1:])
