"""Greedy decoding that can be killed at any moment, and continues in another process if everything is in an arena.

    decode.py --tokens 200                                    without an arena
    decode.py --tokens 200 --arena llm --state                everything in an arena
    decode.py --tokens 200 --arena llm --state --adopt        continues where the last process was killed

All three end with the same tokens and the same digest of the last logits. It reports its actions as JSON lines (--report).
Needs torch and a GPU; with --arena, mpsd, and mpsd_client with its C part on PYTHONPATH.
"""

import argparse
import json
import os
import time
from typing import Any

BEGAN_NS = time.monotonic_ns()

import torch  # noqa: E402
from model import Model, Shape, be_deterministic, digest  # noqa: E402

IMPORTED_NS = time.monotonic_ns()
PROMPT = (1, 42, 7, 99, 3)


class Report:
    """JSON lines, each with the time since the process began; whole ones also when it is killed."""

    def __init__(self, path: str) -> None:
        self._fd = 1 if path == "-" else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def say(self, event: str, **facts: Any) -> None:
        now = time.monotonic_ns()
        line = {"event": event, "pid": os.getpid(), "monotonic_ns": now, "ms": (now - BEGAN_NS) / 1e6, **facts}
        os.write(self._fd, (json.dumps(line) + "\n").encode())


def build(shape: Shape, seed: int) -> dict[str, Any]:
    """Everything that decoding needs, on the default device.  history[p] is the token at position p; position: the next."""
    model = Model(shape)
    model.fill(seed)
    history = torch.zeros(shape.length + 1, dtype=torch.int64)
    history[: len(PROMPT)] = torch.tensor(PROMPT)
    return {"model": model, "kv": model.cache(), "history": history, "position": torch.zeros(1, dtype=torch.int64)}


def plain(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    with torch.device("cuda"):
        return build(shape, options.seed)


def in_arena(shape: Shape, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    from mpsd_client import Arena
    from mpsd_client.torch import pool, save

    arena = Arena.create(options.arena, options.capacity, ttl=options.ttl, path=options.socket)
    with torch.device("cuda"), pool(arena):
        state = build(shape, options.seed)
    if not options.state:
        with torch.device("cuda"):
            state["history"], state["position"] = state["history"].clone(), state["position"].clone()
    save(arena, {name: state[name] for name in kept(options)} | {"extra": vars(shape)})
    return arena, state


def kept(options: argparse.Namespace) -> list[str]:
    return ["model", "kv", "history", "position"] if options.state else ["model", "kv"]


def adopted(shape: Shape, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Without --state it has the weights, and begins anew."""
    from mpsd_client.torch import adopt, load, load_into

    arena = adopt(options.arena, options.wait, path=options.socket)
    if arena.extra != vars(shape):
        raise SystemExit(f"arena {options.arena} holds a model of another shape: {arena.extra}")
    with torch.device("meta"):
        model = Model(shape)
    load_into(arena, model)
    there = load(arena)
    state = {"model": model, "kv": there["kv"]}
    if options.state:
        return arena, state | {"history": there["history"], "position": there["position"]}
    history = torch.zeros(shape.length + 1, dtype=torch.int64, device="cuda")
    history[: len(PROMPT)] = torch.tensor(PROMPT, device="cuda")
    return arena, state | {"history": history, "position": torch.zeros(1, dtype=torch.int64, device="cuda")}


@torch.no_grad()
def decode(state: dict[str, Any], options: argparse.Namespace, report: Report) -> None:
    """One token a step.  A step that is cut off is done again: it writes the same, and moves the position last."""
    model, kv, history, position = (state[name] for name in ("model", "kv", "history", "position"))
    at, last = int(position.item()), len(PROMPT) + options.tokens - 1
    report.say("ready", position=at)
    times = []
    while at < last:
        began = time.monotonic_ns()
        logits = model.step(history[position], kv, position)
        if at + 1 >= len(PROMPT):
            history.index_copy_(0, position + 1, logits.float().argmax().view(1))
        position += 1
        at += 1
        token = int(history[at].item())  # waits for the GPU
        times.append((time.monotonic_ns() - began) / 1e6)
        report.say("token", position=at, token=token, step_ms=times[-1])
        if options.pace:
            time.sleep(max(0.0, options.pace - times[-1] / 1e3))
    if not times:  # the last process had done all but report it: its last step again, which changes nothing
        logits = model.step(history[position - 1], kv, position - 1)
    report.say(
        "end",
        tokens=history[len(PROMPT) : last + 1].tolist(),
        digest=digest(logits),
        median_step_ms=sorted(times)[len(times) // 2] if times else None,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=100, help="how many to make")
    parser.add_argument("--arena", default="", help="name of the arena; empty: PyTorch's own memory")
    parser.add_argument("--adopt", action="store_true", help="the arena is there: go on with it")
    parser.add_argument("--state", action="store_true", help="position and tokens are in the arena too")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds for the writer before to be gone")
    parser.add_argument("--capacity", type=int, default=3 << 30, help="bytes of a new arena")
    parser.add_argument("--ttl", type=float, default=3600.0, help="seconds that a new arena stays unheld")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a token takes at least")
    parser.add_argument("--seed", type=int, default=586)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--report", default="-", help="a file to append to; -: standard output")
    parser.add_argument("--socket", default=None, help="mpsd.sock")
    parser.add_argument("--close", action="store_true", help="close the arena at the end, instead of leaving it to the kernel")
    options = parser.parse_args()
    if options.adopt and not options.arena:
        parser.error("--adopt needs --arena")
    return options


def main() -> None:
    options = parse()
    shape = Shape.small() if options.small else Shape()
    if len(PROMPT) + options.tokens > shape.length:
        raise SystemExit(f"at most {shape.length - len(PROMPT)} tokens")
    report = Report(options.report)
    report.say("begin", import_ms=(IMPORTED_NS - BEGAN_NS) / 1e6, arena=options.arena, adopt=options.adopt)
    be_deterministic()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    report.say("context")
    arena = None
    if not options.arena:
        state = plain(shape, options)
    else:
        arena, state = (adopted if options.adopt else in_arena)(shape, options)
    torch.cuda.synchronize()
    if arena is not None:
        report.say("arena", generation=arena.generation, base=arena.base, used_bytes=arena.used_bytes)
    decode(state, options, report)
    if arena is not None and options.close:
        state.clear()
        arena.close()
        report.say("closed")


if __name__ == "__main__":
    main()
