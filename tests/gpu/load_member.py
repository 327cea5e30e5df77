"""A member of a service whose steps are products and sums on as many SMs as it has; with --rate it answers requests.

    load_member.py --service chat --report FILE [--blocks 2112] [--loops 5000] [--rate FILE]

Each step writes a line to the report: when its request came, when the step began, when it had ended (CLOCK_MONOTONIC, ns).
FILE of --rate has lines: from when on (ns), how many requests come a second, and "regular" or "random".  They come whether or
not a member serves: the next active goes on with the first that was not answered.  The kernel counts the steps in the arena:
"promoted" has what the next active found.
"""

import argparse
import ctypes
import json
import math
import os
import random
import time
from ctypes import byref, c_char_p, c_size_t, c_uint, c_uint64, c_void_p, cast
from pathlib import Path
from typing import Any

from mpsd_client import Dismissed, Service, Term

LOOK_SECONDS = 0.02
THREADS = 256
# Named as a kernel of tests/clients/kernels.ptx, so that the simulator has a function for it.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 p, .param .u64 cycles)
{
    .reg .pred %q<4>; .reg .b32 %r<4>; .reg .f32 %f<8>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [p];
    ld.param.u64 %d2, [cycles];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f0, %r1;
    mov.f32 %f1, 0f3F7FFF00;
    mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.f32 %f4, %f0; mov.f32 %f5, %f0;
LOOP:
    fma.rn.f32 %f2, %f2, %f1, %f0; fma.rn.f32 %f3, %f3, %f1, %f0; fma.rn.f32 %f4, %f4, %f1, %f0; fma.rn.f32 %f5, %f5, %f1, %f0;
    fma.rn.f32 %f2, %f2, %f1, %f3; fma.rn.f32 %f3, %f3, %f1, %f4; fma.rn.f32 %f4, %f4, %f1, %f5; fma.rn.f32 %f5, %f5, %f1, %f2;
    sub.u64 %d2, %d2, 1;
    setp.ne.u64 %q1, %d2, 0;
    @%q1 bra LOOP;
    add.f32 %f2, %f2, %f3; add.f32 %f4, %f4, %f5; add.f32 %f2, %f2, %f4;
    setp.lt.f32 %q2, %f2, 0f00000000;
    @%q2 st.global.f32 [%d1+8], %f2;
    mov.u32 %r2, %ctaid.x;
    or.b32 %r1, %r1, %r2;
    setp.ne.u32 %q3, %r1, 0;
    @%q3 bra DONE;
    ld.global.u64 %d3, [%d1];
    add.u64 %d3, %d3, 1;
    st.global.u64 [%d1], %d3;
DONE:
    ret;
}
"""


class Gpu:
    """The driver, the primary context, a stream and the kernel."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        context, module = c_void_p(), c_void_p()
        self.stream, self.kernel = c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.stream), 1)
        self.call("cuModuleLoadData", byref(module), c_char_p(PTX))
        self.call("cuModuleGetFunction", byref(self.kernel), module, b"spin")

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")

    def step(self, address: int, blocks: int, loops: int) -> None:
        values = (c_uint64(address), c_uint64(loops))
        params = (c_void_p * 2)(*(cast(byref(each), c_void_p) for each in values))
        sizes = [c_uint(each) for each in (blocks, 1, 1, THREADS, 1, 1, 0)]
        self.call("cuLaunchKernel", self.kernel, *sizes, self.stream, params, None)
        self.call("cuStreamSynchronize", self.stream)

    def zero(self, address: int) -> None:
        self.call("cuMemsetD32_v2", c_uint64(address), c_uint(0), c_size_t(4))
        self.call("cuCtxSynchronize")

    def read(self, address: int) -> int:
        value = c_uint64()
        self.call("cuMemcpyDtoH_v2", byref(value), c_uint64(address), c_size_t(8))
        return value.value


class Requests:
    """When the next request comes.  Without a file there is always one."""

    def __init__(self, path: Path | None, due_ns: int) -> None:
        self.path, self.due_ns = path, due_ns
        self._rates: list[tuple[int, float, bool]] = []
        self._looked = -math.inf

    def wait(self) -> bool:
        """Return whether a request is there; after a moment at the latest."""
        now_ns = time.monotonic_ns()
        if self.path is None:
            self.due_ns = now_ns
            return True
        self._look(self.path)
        if not self._rate()[0]:
            self.due_ns = now_ns
            time.sleep(LOOK_SECONDS)
            return False
        if self.due_ns > now_ns:
            time.sleep(min(LOOK_SECONDS, (self.due_ns - now_ns) / 1e9))
        return time.monotonic_ns() >= self.due_ns

    def done(self, number: int) -> None:
        """Find when the next one comes; the same for every member."""
        rate, is_random = self._rate()
        if rate:
            factor = random.Random(number).expovariate(1.0) if is_random else 1.0
            self.due_ns += int(1e9 * factor / rate)

    def _rate(self) -> tuple[float, bool]:
        """Return that of the time when the request came, however late it is answered."""
        return next(((rate, kind) for since, rate, kind in reversed(self._rates) if since <= self.due_ns), (0.0, False))

    def _look(self, path: Path) -> None:
        if time.monotonic() > self._looked + LOOK_SECONDS:
            lines = (line.split() for line in path.read_text().splitlines())
            self._rates = [(int(since), float(rate), kind == "random") for since, rate, kind in lines]
            self._looked = time.monotonic()


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", default=os.environ.get("MPSD_SERVICE", "load"))
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=2112)
    parser.add_argument("--loops", type=int, default=5000)
    parser.add_argument("--rate", type=Path)
    asked = parser.parse_args()
    service = Service(asked.service, capacity=2 << 20, schema={"n": "uint64", "due_ns": "uint64"})
    gpu = Gpu()
    arena = service.open()
    if arena.layout is not None:
        service.rehearse(lambda: gpu.step(_word(service.open()), asked.blocks, asked.loops))
    try:
        while True:
            say("standby")
            with service.active() as term:
                serve(term, gpu, asked)
            say("yielded")
    except Dismissed as exc:
        say("dismissed", why=str(exc))
        return 3


def _word(arena: Any) -> int:
    return int(json.loads(arena.layout)["word"])


def serve(term: Term, gpu: Gpu, asked: argparse.Namespace) -> None:
    arena, last = term.arena, term.record or {}
    if arena.layout is None:
        block = arena.allocate(16)
        gpu.zero(block.address)
        arena.commit({"word": block.address})
    word, number = _word(arena), int(last["n"]) if last else 0
    requests = Requests(asked.rate, int(last["due_ns"]) if last else time.monotonic_ns())
    say("promoted", generation=term.generation, n=number, value=gpu.read(word))
    with asked.report.open("a", buffering=1) as report:
        while not term.is_over:
            if not requests.wait():
                continue
            came_ns, began_ns = requests.due_ns, time.monotonic_ns()
            with term.at_work():
                gpu.step(word, asked.blocks, asked.loops)
            number += 1
            requests.done(number)
            term.publish(n=number, due_ns=requests.due_ns)
            report.write(f"{came_ns} {began_ns} {time.monotonic_ns()}\n")


if __name__ == "__main__":
    raise SystemExit(main())
