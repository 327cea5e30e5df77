"""A member of a service whose kernels count in the arena without a pause; a promoted member first watches whether that
continues.

    tick_member.py --service tick --kernels kernels.ptx [--ms 500] [--watch-ms 60]

"promoted"; "watched", with the number of observed changes of the word: 0, unless the last active still writes; "first_step",
when its own first kernel is running.
"""

import argparse
import ctypes
import json
import os
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from mpsd_client import Dismissed, Service

CYCLES_MS = 1_755_000  # of an H200 in a millisecond, about
WORDS = 2  # the counter, and in the process's memory the number of its changes


class Gpu:
    """The driver, a context, and the kernels by name."""

    def __init__(self, kernels: Path) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, module = c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", byref(module), kernels.read_bytes() + b"\0")
        self._kernels = {name: c_void_p() for name in ("tick", "still")}
        for name, kernel in self._kernels.items():
            self.call("cuModuleGetFunction", byref(kernel), module, name.encode())

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")

    def launch(self, name: str, *values: int) -> None:
        words = [c_uint64(value) for value in values]
        parameters = (c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        self.call("cuLaunchKernel", self._kernels[name], *([1] * 6), 0, None, parameters, None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")

    def zeroed(self) -> int:
        memory = c_uint64()
        self.call("cuMemAlloc_v2", byref(memory), c_size_t(8))
        self.call("cuMemsetD32_v2", memory, 0, c_size_t(2))
        return memory.value

    def read(self, address: int) -> int:
        value = c_uint64()
        self.call("cuMemcpyDtoH_v2", byref(value), c_uint64(address), c_size_t(8))
        return value.value


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service", default="tick")
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--ms", type=int, default=500, help="of a kernel")
    parser.add_argument("--watch-ms", type=int, default=60)
    asked = parser.parse_args()
    say("begin")
    service = Service(asked.service, capacity=4 << 20, schema={"term": "uint64"})
    gpu = Gpu(asked.kernels)
    changes = gpu.zeroed()
    gpu.launch("tick", changes, 1000)  # what a first launch waits for
    gpu.wait()
    service.open()
    say("opened")
    say("standby")
    try:
        with service.active() as term:
            tick(term, gpu, asked)
    except Dismissed as exc:
        say("dismissed", why=str(exc))
        return 3
    say("yielded")
    return 0


def tick(term: Any, gpu: Gpu, asked: argparse.Namespace) -> None:
    say("promoted", generation=term.generation, told_ns=term.promoted_ns, record=term.record is not None)
    changes = gpu.zeroed()
    if term.arena.layout is None:
        word = term.arena.allocate(8).address
        term.arena.commit({"word": word})
    else:
        word = json.loads(term.arena.layout)["word"]
        gpu.launch("still", word, asked.watch_ms * CYCLES_MS, changes)
    gpu.wait()
    say("watched", changes=gpu.read(changes), watched_ms=asked.watch_ms)
    gpu.launch("tick", word, asked.ms * CYCLES_MS)
    say("first_step")
    term.publish(term=term.generation)
    while not term.is_over:
        gpu.launch("tick", word, asked.ms * CYCLES_MS)  # one runs, one waits, without a gap
        gpu.wait()


if __name__ == "__main__":
    raise SystemExit(main())
