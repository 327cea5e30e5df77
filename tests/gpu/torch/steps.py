"""The time of a step: training, reading or decoding text, in PyTorch's own memory or in an arena, with or without the shim.

    steps.py --kind infer                                     one JSON object: the median, and the spread
    steps.py --kind infer --arena steps                       the same with weights and cache in an arena
    LD_PRELOAD=.../libmpsd.so steps.py --kind train           the same under the shim

To compare, run in turns: a GPU's clock drifts more than an arena costs. --rounds does so within one process; with --turns
several processes live at once, and each makes its steps on request, a line of standard input for each turn. A step of `decode`
is the time that the host needs to launch it, which scatters by a third; those of `infer` and `train` are the GPU's.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from model import Model, Shape
from torch.nn import functional

READ_ROWS, TRAIN_ROWS, LENGTH = 24, 8, 1024  # of texts: enough for the GPU to be what is waited for; 8 x 512 were not


def _texts(shape: Shape, rows: int) -> torch.Tensor:
    return torch.randint(0, shape.vocab, (rows, min(LENGTH, shape.length)), device="cuda")


def inference(shape: Shape, inside: Callable[[], Any], seed: int) -> tuple[dict[str, Any], Callable[[], None]]:
    """Whole texts, as a server reads prompts."""
    with torch.device("cuda"), inside():
        model = Model(shape)
        model.fill(seed)
    texts = _texts(shape, READ_ROWS)

    @torch.no_grad()
    def step() -> None:
        model(texts)

    return {"model": model}, step


def decoding(shape: Shape, inside: Callable[[], Any], seed: int) -> tuple[dict[str, Any], Callable[[], None]]:
    with torch.device("cuda"), inside():
        model = Model(shape)
        model.fill(seed)
        state = {"model": model, "kv": model.cache(), "position": torch.zeros(1, dtype=torch.int64)}
    token = torch.ones(1, dtype=torch.int64, device="cuda")

    @torch.no_grad()
    def step() -> None:
        logits = model.step(token, state["kv"], state["position"])
        token.copy_(logits.float().argmax())
        state["position"].add_(1).remainder_(shape.length)

    return state, step


def training(shape: Shape, inside: Callable[[], Any], seed: int) -> tuple[dict[str, Any], Callable[[], None]]:
    """AdamW; its moments, and the gradients, which are made once and zeroed, are where the weights are."""
    with torch.device("cuda"), inside():
        model = Model(shape)
        model.fill(seed)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        optimizer.step()  # makes its moments
    texts = _texts(shape, TRAIN_ROWS)

    def step() -> None:
        loss = functional.cross_entropy(model(texts[:, :-1]).flatten(0, 1).float(), texts[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    moments = {str(number): each for number, each in optimizer.state_dict()["state"].items()}
    return {"model": model, "optimizer": moments}, step


KINDS = {"infer": inference, "decode": decoding, "train": training}


def median_ms(step: Callable[[], None], count: int) -> list[float]:
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def summary(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "median_ms": statistics.median(times),
        "p10_ms": times[len(times) // 10],
        "p90_ms": times[len(times) * 9 // 10],
        "steps": len(times),
    }


def in_arena(options: argparse.Namespace, shape: Shape) -> tuple[Any, Callable[[], None]]:
    from mpsd_client import Arena
    from mpsd_client.torch import pool, save

    arena = Arena.create(options.arena, options.capacity, ttl=600.0, path=options.socket)
    state, step = KINDS[options.kind](shape, lambda: pool(arena), options.seed)
    began = time.perf_counter()
    save(arena, state)
    print(json.dumps({"event": "saved", "ms": (time.perf_counter() - began) * 1e3, "used_bytes": arena.used_bytes}), flush=True)
    return arena, step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=sorted(KINDS), default="infer")
    parser.add_argument("--arena", default="", help="name of a new arena; empty: PyTorch's own memory")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=0, help="with --arena: plain and arena in turns, so often")
    parser.add_argument("--turns", action="store_true", help="make the steps at each line of standard input, until its end")
    parser.add_argument("--capacity", type=int, default=12 << 30, help="bytes of the arena")
    parser.add_argument("--seed", type=int, default=586)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--socket", default=None, help="mpsd.sock")
    options = parser.parse_args()
    shape = Shape.small() if options.small else Shape()
    has_shim = "libmpsd.so" in Path("/proc/self/maps").read_text()
    torch.zeros(1, device="cuda")
    steps: dict[str, Callable[[], None]] = {}
    if options.arena:
        _arena, steps["arena"] = in_arena(options, shape)
    if not options.arena or options.rounds:
        steps["plain"] = KINDS[options.kind](shape, nullcontext, options.seed)[1]
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        median_ms(step, options.warmup)
    if options.turns:
        take_turns(steps["arena" if options.arena else "plain"], options.steps)
        return
    for _ in range(options.rounds or 1):
        for name, step in steps.items():
            times[name] += median_ms(step, options.steps)
    for name, found in times.items():
        facts = {"kind": options.kind, "memory": name, "shim": has_shim, "pid": os.getpid(), **summary(found)}
        print(json.dumps({"event": "steps", **facts}), flush=True)


def take_turns(step: Callable[[], None], count: int) -> None:
    print(json.dumps({"event": "ready", "monotonic_ns": time.monotonic_ns()}), flush=True)
    for _line in sys.stdin:
        median_ms(step, 1)  # the GPU and the caches were another's
        times = median_ms(step, count)
        print(json.dumps({"event": "turn", "monotonic_ns": time.monotonic_ns(), **summary(times)}), flush=True)


if __name__ == "__main__":
    main()
