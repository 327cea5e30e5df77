"""A member of a service that checks for a second writer at each step: `python failover_member.py ...` on the simulated driver.
It reports its actions as lines of JSON; a line on its standard input makes it fault.

    word 0      counts kernels: each step's kernel adds 1 when it ends, and so shows a process that was fenced too early
    word 1      (generation, step) of the last step, 32 bits each
    word 2      two values of 32 bits in turn: step n is computed from the other one, so that it can be repeated

Before a step the memory must be as the last step of this process left it, or as it was at the takeover. Sometimes a step also
commits other memory under the same layout, which contains the number of that step.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import sys
import time
from ctypes import byref, c_char_p, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from mpsd_client import Block, Layout, MpsdError, Service, TensorSpec, Term

FIELDS = {"step": "uint64", "value": "uint64"}
KERNELS = ("spin", "trap", "oob_write")
PTX = b".version 7.0\n" + b"".join(b".visible .entry %s(\n" % name.encode() for name in KERNELS)
CYCLES_PER_MS = 1_755_000
CHANGE_EVERY = 25  # steps


@dataclass(frozen=True)
class Memory:
    count: int
    generation: int
    step: int
    values: tuple[int, int]


def next_of(value: int) -> int:
    return (value * 1664525 + 1013904223) % 2**32


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()} | facts), flush=True)


class Gpu:
    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context, module, self.private = c_void_p(), c_void_p(), c_uint64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", byref(module), c_char_p(PTX))
        self.call("cuMemAlloc_v2", byref(self.private), c_size_t(64))
        self.kernels = {name: c_void_p() for name in KERNELS}
        for name, kernel in self.kernels.items():
            self.call("cuModuleGetFunction", byref(kernel), module, name.encode())

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")

    def launch(self, name: str, *values: int) -> None:
        words = [c_uint64(value) for value in values]
        pointers = (c_void_p * len(words))(*[ctypes.addressof(word) for word in words])
        self.call("cuLaunchKernel", self.kernels[name], 1, 1, 1, 32, 1, 1, 0, None, pointers, None)

    def read(self, address: int) -> Memory:
        room = ctypes.create_string_buffer(24)
        self.call("cuMemcpyDtoH_v2", room, c_uint64(address), c_size_t(24))
        count, generation, step, even, odd = struct.unpack("<QIIII", room.raw)
        return Memory(count, generation, step, (even, odd))

    def set(self, address: int, value: int) -> None:
        self.call("cuMemsetD32Async", c_uint64(address), c_uint32(value), c_size_t(1), None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")


class Member:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.steps_left = asked.die_after  # until it dies at the requested place

    def die(self, where: str) -> None:
        """Killed here, if that was asked for."""
        if self.asked.die_at == where:
            if self.steps_left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps_left -= where != "promoted"

    def run(self) -> None:
        service = Service(
            self.asked.service, capacity=8 << 20, schema=FIELDS, gpu=0, rank=self.asked.rank, heartbeat=self.asked.heartbeat
        )
        say("enlisted")
        self.die("enlisted")
        self.gpu = Gpu()
        say("context")
        self.die("context")
        service.open()
        say("opened")
        self.die("opened")
        service.on_promote(self.take_over)
        while True:
            say("standby")
            with service.active() as term:
                self.serve(term)
            say("yielded", generation=term.generation)

    def take_over(self, term: Term) -> None:
        """Within the promotion."""
        self.die("promoted")
        if term.arena.layout is None:
            block = term.arena.allocate(24)
            self.gpu.call("cuMemsetD8_v2", c_uint64(block.address), 0, c_size_t(24))
            term.arena.commit(Layout({"words": TensorSpec(block.offset, "uint64", (3,), (1,))}))
        self.address = term.arena["words"].address
        self.memory = self.gpu.read(self.address)
        record = dict(term.record) if term.record else {"step": 0, "value": 0}
        for block in self.others(term):
            if self.gpu.read(block.address).count % CHANGE_EVERY:
                say("conflict", generation=term.generation, why="other memory than was committed")
                os._exit(9)
        say("promoted", generation=term.generation, told_ns=term.promoted_ns, record=record, memory=vars(self.memory))

    def serve(self, term: Term) -> None:
        step = int(str(term.record["step"])) if term.record else 0
        while not term.is_over:
            step += 1
            self.obey()
            self.compare(term, step)
            value = next_of(self.memory.values[(step - 1) % 2])
            if step % CHANGE_EVERY == 0:
                self.change(term, step)
            self.compute(term, step, value)
            self.die("computed")
            term.publish(step=step, value=value)
            published_ns = time.monotonic_ns()
            self.die("published")
            say("step", n=step, value=value, generation=term.generation, published_ns=published_ns)
            time.sleep(self.asked.pace)

    def compare(self, term: Term, step: int) -> None:
        found = self.gpu.read(self.address)
        if found != self.memory:
            say("conflict", generation=term.generation, step=step, expected=vars(self.memory), found=vars(found))
            os._exit(9)

    def compute(self, term: Term, step: int, value: int) -> None:
        self.gpu.launch("spin", self.address, round(self.asked.kernel_ms * CYCLES_PER_MS))
        self.gpu.set(self.address + 16 + 4 * (step % 2), value)
        self.gpu.set(self.address + 8, term.generation)
        self.gpu.set(self.address + 12, step)
        self.gpu.wait()
        values = (value, self.memory.values[1]) if step % 2 == 0 else (self.memory.values[0], value)
        self.memory = Memory(self.memory.count + 1, term.generation, step, values)
        self.compare(term, step)

    def others(self, term: Term) -> list[Block]:
        return [block for block in term.arena.blocks() if block.address != self.address]

    def change(self, term: Term, step: int) -> None:
        for block in self.others(term):
            term.arena.free(block)
        block = term.arena.allocate(8)
        self.gpu.call("cuMemsetD8_v2", c_uint64(block.address), 0, c_size_t(24))
        self.gpu.set(block.address, step)
        self.gpu.wait()
        term.arena.commit()

    def obey(self) -> None:
        if not select.select([sys.stdin], [], [], 0)[0]:
            return
        kernel = sys.stdin.readline().strip()
        if not kernel:
            raise SystemExit(0)
        say("faulting", kernel=kernel)
        self.gpu.launch(kernel, self.gpu.private.value)
        self.gpu.wait()


def main() -> None:
    known = argparse.ArgumentParser()
    known.add_argument("--service", required=True)
    known.add_argument("--rank", type=int, default=0)
    known.add_argument("--heartbeat", type=float, default=0.0)
    known.add_argument("--kernel-ms", type=float, default=1.0)
    known.add_argument("--pace", type=float, default=0.002)
    known.add_argument("--die-at", default="", help="enlisted, context, opened, promoted, computed or published")
    known.add_argument("--die-after", type=int, default=0, help="so many steps before that")
    try:
        Member(known.parse_args()).run()
    except (MpsdError, RuntimeError, OSError) as exc:
        with contextlib.suppress(BrokenPipeError):
            say("over", why=repr(exc))
        os._exit(3)  # a context that is lost need not be taken down


if __name__ == "__main__":
    main()
