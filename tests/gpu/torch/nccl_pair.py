"""One of two processes that add up tensors of two GPUs with NCCL, and go on until their standard input ends.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=N nccl_pair.py

Prints one JSON object a line: `ready` with the rate of an all-reduce of 512 MiB, a `round` every 0.2 s, `end`; where a sum
is not exact, `wrong`, and exit status 1.
"""

import datetime
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

ELEMENTS = 1 << 28  # of two bytes
REPEATS = 10
ROUND_SECONDS = 0.2
JOIN_SECONDS = 40


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()} | facts), flush=True)


def rate(tensor: torch.Tensor) -> float:
    """GB/s of an all-reduce, as NCCL's tests count it: the bytes of the tensor in the time of one."""
    for _ in range(3):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    before = time.monotonic()
    for _ in range(REPEATS):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return tensor.numel() * tensor.element_size() * REPEATS / (time.monotonic() - before) / 1e9


def is_exact(rank: int) -> bool:
    tensor = torch.full((1000,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    return bool((tensor == 3.0).all())


def main() -> int:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank if torch.cuda.device_count() > 1 else 0)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=JOIN_SECONDS))
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    say("ready", gb_per_second=rate(torch.zeros(ELEMENTS, device="cuda", dtype=torch.bfloat16)))
    rounds, told = 0, time.monotonic()
    stop = torch.zeros(1, device="cuda")
    while True:  # both leave in the same round
        if not is_exact(rank):
            say("wrong", rounds=rounds)
            return 1
        rounds += 1
        stop.fill_(float(stopped.is_set()))
        dist.all_reduce(stop)
        if stop.item():
            break
        if time.monotonic() - told > ROUND_SECONDS:
            told = time.monotonic()
            say("round", rounds=rounds)
    say("end", rounds=rounds)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # NCCL's own end waits for the other process
