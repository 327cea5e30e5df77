"""A co-runner of the trials of containment: it trains a network, or multiplies matrices with cuBLAS, and checks each result.

    co_runner.py train|matmul [--turns]

It imports PyTorch ("imported"), makes its context at a first line of its standard input ("ready", after its first steps), and
works until that input ends ("end").  Training prints every loss: two runs without a fault print the same ones, one of which may
be longer.  A product is wrong if it is not the first one, bit for bit.  --turns: after "ready" it idles, and for each line of
its input works for so many seconds ("turn").
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic
import torch

WIDTH, ROWS, SIZE = 1024, 256, 2048
WARMUP = 10  # steps


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def training(losses: list[float]) -> Callable[[], None]:
    hidden = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    network = torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTH, 1)).cuda()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    texts, wanted = torch.randn(ROWS, WIDTH, device="cuda"), torch.randn(ROWS, 1, device="cuda")

    def step() -> None:
        loss = torch.nn.functional.mse_loss(network(texts), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))

    return step


def multiplying(wrong: list[int]) -> Callable[[], None]:
    one, other = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    first = one @ other

    def step() -> None:
        if not torch.equal(one @ other, first):
            wrong[0] += 1

    return step


def is_released() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def take_turns(step: Callable[[], None]) -> None:
    for line in sys.stdin:
        began, steps, seconds = time.perf_counter(), 0, float(line)
        while time.perf_counter() - began < seconds:
            step()
            steps += 1
        torch.cuda.synchronize()
        say("turn", steps=steps, seconds=time.perf_counter() - began)


def main(kind: str, has_turns: bool) -> None:
    say("imported")
    if not os.read(0, 64):
        return
    torch.manual_seed(586)
    torch.use_deterministic_algorithms(True)
    losses: list[float] = []
    wrong = [0]
    step = training(losses) if kind == "train" else multiplying(wrong)
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    say("ready")
    if has_turns:
        take_turns(step)
        return
    began, steps, worst, ticks = time.perf_counter(), 0, 0.0, 0
    while not is_released():
        before = time.perf_counter()
        step()
        after = time.perf_counter()
        worst = max(worst, after - before)
        steps += 1
        if after - began > ticks + 1:
            ticks = int(after - began)
            say("tick", steps=steps, worst_ms=worst * 1e3)
    seconds = time.perf_counter() - began
    torch.cuda.synchronize()
    say("end", steps=steps, seconds=seconds, worst_ms=worst * 1e3, wrong=wrong[0], losses=losses)


if __name__ == "__main__":
    try:
        main(sys.argv[1], "--turns" in sys.argv[2:])
    except Exception as error:  # a CUDA error: PyTorch's text of it is long
        say("error", code=-1, why=str(error).splitlines()[0][:160])
        os._exit(5)  # PyTorch's own end could hang on the broken context
