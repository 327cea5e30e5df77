"""Take images of an arena while its client writes it. Prints JSON lines.

    image_client.py take BYTES PERMILLE TRIALS DIRECTORY    take images in a row; each step writes PERMILLE of the bytes;
                                                            then restore the last one
    image_client.py write BYTES PERMILLE    step until the end of the input; at each line of it report the longest step since
                                            the one before
    image_client.py frozen BYTES PERMILLE DIRECTORY IMAGE   look whether an image of `write` is of one moment
    image_client.py save BYTES DIRECTORY                    save as many bytes by torch.save and by safetensors
    image_client.py checkpoint BYTES                        checkpoint a process without MPS by the driver's calls
"""

import ctypes
import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpsd_client import TensorSpec

BLOCK = 2 << 20
WORK_BYTES = 256 << 20  # each step also copies these, limited by the GPU's memory bandwidth
KERNELS = Path(__file__).parents[1] / "clients/kernels.ptx"
CUDA_BLOCKS, THREADS = 1056, 512  # all that an H100 or H200 runs at a time, and more
PARTS = 8
RATE_SECONDS = 0.5
RESTORES = 3
WORD_FACTOR = 0x9E3779B97F4A7C15  # of the kernel `fill`
SAMPLES = 32  # blocks of each image that are compared with the arena's at the barrier


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


class Worker:
    """Writes its arena and copies private memory, step by step; the GPU always has the next step queued."""

    def __init__(self, size: int, permille: int) -> None:
        from mpsd_client import Arena, Layout

        self.arena = Arena.create("imaged", size)
        self.block = self.arena.allocate(size)
        self._dirty = size * permille // 1000 // BLOCK * BLOCK
        work = min(WORK_BYTES, size)
        self._from, self._to, self._work = _allocated(work), _allocated(work), work
        self._steps = 0
        self._ends = [_call("cuEventCreate", 2) for _ in range(2)]  # 2: without times
        module = _call("cuModuleLoadData", KERNELS.read_bytes() + b"\0")
        self._fill = _call("cuModuleGetFunction", module, b"fill")
        self._write(size)
        _call("cuCtxSynchronize")
        self.arena.commit(Layout(self._parts(size)))

    def _parts(self, size: int) -> "dict[str, TensorSpec]":
        """Return a name for each of the arena's equal parts, as of a model's layers."""
        from mpsd_client import TensorSpec

        each, first = size // PARTS // BLOCK * BLOCK, self.block.offset
        return {f"layers.{number}": TensorSpec(first + number * each, "uint8", (each,), (1,)) for number in range(PARTS)}

    def _write(self, size: int) -> None:
        """Write words that are all different: of equal blocks an image stores one."""
        values = (self.block.address, size // 8, self._steps), (ctypes.c_uint64,) * 3
        _call("cuLaunchKernel", self._fill, CUDA_BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, values, 0)

    def step(self) -> None:
        self._steps += 1
        if self._dirty:
            self._write(self._dirty)
        _call("cuMemcpyDtoDAsync", self._to, self._from, self._work, 0)
        _call("cuEventRecord", self._ends[self._steps % 2], 0)
        _call("cuEventSynchronize", self._ends[(self._steps + 1) % 2])  # of the step before

    def rate(self) -> float:
        """Return the steps per second without an imager."""
        began, before = time.monotonic(), self._steps
        while (passed := time.monotonic() - began) < RATE_SECONDS:
            self.step()
        return (self._steps - before) / passed

    def sample(self, seed: int) -> dict[int, bytes]:
        """Read some blocks, by their offset in the arena."""
        blocks = random.Random(seed).choices(range(self.block.bytes // BLOCK), k=SAMPLES)
        places = [each * BLOCK for each in blocks]
        return {self.block.offset + at: self.arena.copy_out(self.block.address + at, BLOCK) for at in places}

    def take(self, number: int, directory: Path, rate: float) -> dict[str, Any]:
        began, before = time.monotonic(), self._steps
        taking = self.arena.image(f"image.{number}", directory)
        while not taking.is_prepared:
            self.step()
        prepared = time.monotonic() - began
        steps = self._steps - before
        barrier = taking.barrier()
        expected = self.sample(number)
        resumed, before, never = time.monotonic(), self._steps, threading.Event()
        while not taking.wait_for_answer(never, 0, 0):
            self.step()
        ended = time.monotonic()
        image = taking.wait()
        return {
            "stall_ms": barrier.stall_seconds * 1e3,
            "staged_bytes": barrier.staged_bytes,
            "direct_bytes": barrier.direct_bytes,
            "prepared_s": prepared,
            "total_s": ended - began,
            "speed": (steps + self._steps - before) / (prepared + ended - resumed) / rate,
            "new_bytes": image.new_bytes,
            "is_right": _is_image(directory, image.name, expected),
        }


def _is_image(directory: Path, name: str, expected: dict[int, bytes]) -> bool:
    from mpsd.images.store import Images

    into = bytearray(BLOCK)
    with Images.open(directory) as images, images.reader(name) as image:
        for offset, data in expected.items():
            image.read_into(0, offset, into)
            if into != data:
                return False
    return True


def _call(name: str, *arguments: Any) -> Any:
    from cuda.bindings import driver

    status, *found = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{name}: {status.name}")
    return found[0] if found else None


def _use_gpu() -> None:
    _call("cuInit", 0)
    _call("cuCtxSetCurrent", _call("cuDevicePrimaryCtxRetain", 0))


def _allocated(size: int) -> int:
    return int(_call("cuMemAlloc", size))


def take(size: str, permille: str, trials: str, directory: str) -> None:
    from mpsd_client import Client, calls

    from mpsd.images.store import Images

    _use_gpu()
    worker = Worker(int(size), int(permille))
    worker.rate()
    for number in range(int(trials)):
        rate = worker.rate()
        say("image", **worker.take(number, Path(directory), rate))
        if number + 1 == int(trials):
            break
        with Images.open(Path(directory)) as images:  # each image has all of its bytes to write, as the first
            images.remove(f"image.{number}")
            images.collect()
    worker.arena.close()
    with Client() as mpsd:
        mpsd.ask(calls.arena_remove("imaged"))
        for _ in range(RESTORES):
            say("restored", **restore(f"image.{int(trials) - 1}", Path(directory)))
            mpsd.ask(calls.arena_remove("restored"))
    say("end")


def restore(image: str, directory: Path) -> dict[str, Any]:
    """Wait for an image's first part, and then for all."""
    from mpsd_client import restore_arena

    began = time.monotonic()
    with restore_arena(image, "restored", ["layers.0"], directory=directory) as arena:
        opened = time.monotonic() - began
        arena.ready("layers.0")
        first = time.monotonic() - began
        arena.ready()
        whole = time.monotonic() - began
        [block] = arena.blocks()
        places = random.Random(1).choices(range(0, block.bytes, BLOCK), k=SAMPLES)
        found = {block.offset + at: arena.copy_out(block.address + at, BLOCK) for at in places}
        return {"opened_s": opened, "first_s": first, "all_s": whole, "is_right": _is_image(directory, image, found)}


def write(size: str, permille: str) -> None:
    _use_gpu()
    worker = Worker(int(size), int(permille))
    rate = worker.rate()
    say("writing", rate=rate)
    before, longest = time.monotonic(), 0.0
    while True:
        worker.step()
        now = time.monotonic()
        before, longest = now, max(longest, now - before)
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                break
            say("stood", longest_ms=longest * 1e3, usual_ms=1e3 / rate)
            before, longest = time.monotonic(), 0.0


def frozen(size: str, permille: str, directory: str, name: str) -> None:
    """Look at the first and the last word of each block: those that each step writes have to be of one step."""
    from mpsd.images.store import Images

    dirty = int(size) * int(permille) // 1000 // BLOCK * BLOCK
    into, steps, others = bytearray(BLOCK), set[int](), set[int]()
    with Images.open(Path(directory)) as images, images.reader(name) as image:
        for at in range(0, int(size), BLOCK):
            image.read_into(0, at, into)
            for place in (0, BLOCK - 8):
                word = int.from_bytes(into[place : place + 8], "little")
                (steps if at < dirty else others).add(word ^ (at + place) // 8 * WORD_FACTOR % (1 << 64))
    is_rest_right = others == {0} and 0 not in steps
    say("frozen", steps=sorted(steps), is_rest_right=is_rest_right, is_right=is_rest_right and len(steps) == 1)


def save(size: str, directory: str) -> None:
    import torch

    data = torch.ones(int(size), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    path = Path(directory, "saved")
    began = time.monotonic()
    torch.save(data, path)
    os.sync()
    say("torch.save", seconds=time.monotonic() - began)
    try:
        from safetensors.torch import save_file
    except ImportError:
        return
    began = time.monotonic()
    save_file({"data": data}, path)
    os.sync()
    say("safetensors", seconds=time.monotonic() - began)


def hold(size: str) -> None:
    _use_gpu()
    _call("cuMemsetD8", _allocated(int(size)), 1, int(size))
    _call("cuCtxSynchronize")
    say("held")
    sys.stdin.read()


def checkpoint(size: str) -> None:
    """Checkpoint and restore a process; it stands still from the lock to the unlock."""
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}  # it refuses clients of MPS (801)
    command = [sys.executable, __file__, "hold", size]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        _call("cuInit", 0)
        began = time.monotonic()
        for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
            _call(f"cuCheckpointProcess{name}", process.pid, None)
            say(name.lower(), seconds=time.monotonic() - began)
        process.communicate(b"")


if __name__ == "__main__":
    verbs = {"take": take, "write": write, "frozen": frozen, "save": save, "hold": hold, "checkpoint": checkpoint}
    verbs[sys.argv[1]](*sys.argv[2:])
