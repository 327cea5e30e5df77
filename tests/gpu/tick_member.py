"""A member of a service whose kernels count in the arena without a pause; a promoted member first watches whether that
continues.

    tick_member.py --service tick --kernels kernels.ptx [--ms 500] [--watch-ms 60]

"promoted"; "watched", with the number of observed changes of the word: 0, unless the last active still writes; "first_step",
when its own first kernel is running.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, Device, LaunchConfig, ObjectCode, launch
from mpsd_client import Dismissed, Service

CYCLES_MS = 1_755_000  # of an H200 in a millisecond, about
WORDS = 2  # the counter, and in the process's memory the number of its changes


class Gpu:
    """The device, and the kernels by name."""

    def __init__(self, kernels: Path) -> None:
        Device(0).set_current()
        code = ObjectCode.from_ptx(kernels.read_bytes())
        self._kernels = {name: code.get_kernel(name) for name in ("tick", "still")}

    def launch(self, name: str, *values: int) -> None:
        launch(LEGACY_DEFAULT_STREAM, LaunchConfig(grid=1, block=1), self._kernels[name], *map(numpy.uint64, values))

    def wait(self) -> None:
        LEGACY_DEFAULT_STREAM.sync()

    def zeroed(self) -> int:
        address = int(call(driver.cuMemAlloc, 8))
        call(driver.cuMemsetD32, address, 0, 2)
        return address

    def read(self, address: int) -> int:
        value = numpy.zeros(1, numpy.uint64)
        call(driver.cuMemcpyDtoH, value.ctypes.data, address, 8)
        return int(value[0])


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    status, *found = function(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{function.__name__}: {status.name}")
    return found[0] if found else None


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
