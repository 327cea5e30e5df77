"""A member of a service with replicas, run as `python replica_member.py SERVICE DIRECTORY DEVICE` on the simulator.

Step n writes n to block n % BLOCKS, so the memory is a function of the step in the forward state.  It prints lines of JSON, and
ends with status 9 if memory and record do not agree at the begin of a term.
"""

import ctypes
import os
import sys
import time

from arena_looks import MIB, cuda, say
from mpsd_client import ImageSchedule, Layout, Service, TensorSpec, Term
from mpsd_client._arena import Arena
from mpsd_client._cuda import on_device

BLOCK, BLOCKS = 2 * MIB, 4
WORDS = BLOCK // 4
PACE = 0.02
LOOK_SECONDS = 0.5  # as a standby


def write(address: int, value: int) -> None:
    assert cuda.cuMemsetD32_v2(ctypes.c_uint64(address), ctypes.c_uint(value), ctypes.c_size_t(WORDS)) == 0
    assert cuda.cuCtxSynchronize() == 0


def expected(step: int) -> list[int]:
    return [next((at for at in range(step, max(0, step - BLOCKS), -1) if at % BLOCKS == block), 0) for block in range(BLOCKS)]


def found(arena: Arena) -> list[int]:
    """Return the number in each block; -1 for a torn one."""
    first = arena["words"].address
    values = []
    for block in range(BLOCKS):
        data = arena.copy_out(first + block * BLOCK, BLOCK)
        values.append(int.from_bytes(data[:4], "little") if data == data[:4] * WORDS else -1)
    return values


def begin(term: Term, was_replica: bool) -> int:
    """Compare, and return the step.  A killed active may have begun the next one in this memory."""
    arena = term.arena
    if arena.layout is None:
        block = arena.allocate(BLOCK * BLOCKS)
        with on_device(arena.device):
            for number in range(BLOCKS):
                write(block.address + number * BLOCK, 0)
        arena.commit(Layout({"words": TensorSpec(block.offset, "uint32", (WORDS * BLOCKS,), (1,))}))
    step = int(str(term.record["step"])) if term.record else 0
    differ = [block for block, (one, other) in enumerate(zip(found(arena), expected(step), strict=True)) if one != other]
    is_right = differ == [] or (differ == [(step + 1) % BLOCKS] and not was_replica)
    say(event="term", pid=os.getpid(), step=step, generation=term.generation, gpu=arena.gpu, name=arena.name, right=is_right,
        found=found(arena))  # fmt: skip
    if not is_right:
        os._exit(9)
    return step


def main(name: str, directory: str, device: str, every: str = "0.3") -> None:
    images = ImageSchedule(every=float(every), directory=directory)
    schema = {"step": "uint64"}
    service = Service(name, capacity=16 * MIB, schema=schema, images=images, replica_lag=5.0, heartbeat=10.0)
    context = ctypes.c_void_p()
    for status in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(device)),
        cuda.cuCtxSetCurrent(context),
    ):
        assert status == 0, f"CUDA error {status}"
    with service:
        service.on_commit(lambda arena: say(event="adopted", pid=os.getpid(), names=sorted(arena)))
        arena = service.open()
        was_replica = arena.name != name
        say(event="open", pid=os.getpid(), arena=arena.name, gpu=arena.gpu)
        while True:
            while (term := service.standby(LOOK_SECONDS)) is None:
                if arena.layout is not None and (record := service._last_record()):  # of a replica: it copies nothing now
                    step, has = int(str(record["step"])), found(arena)
                    say(event="has", pid=os.getpid(), step=step, found=has, right=has == expected(step))
            with term:
                step = begin(term, was_replica)
                while not term.is_over:
                    step += 1
                    with on_device(term.arena.device):
                        write(term.arena["words"].address + step % BLOCKS * BLOCK, step)
                    term.publish(step=step)
                    say(event="step", pid=os.getpid(), step=step, generation=term.generation)
                    time.sleep(PACE)


main(*sys.argv[1:])
