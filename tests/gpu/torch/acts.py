"""The actions of the other processes of checks.py: write and die; adopt and report the contents. `python acts.py VERB
ARENA`."""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from mpsd_client import Arena, LayoutError, Service
from mpsd_client._layout import DATA_TYPES
from mpsd_client.torch import adopt, capture, keep, load, load_into, pool, rng_state, save
from torch import Tensor, nn

MIB = 1 << 20
CUDA = torch.device("cuda")
KINDS = [getattr(torch, name) for name in DATA_TYPES if hasattr(torch, name)]
held: list[Any] = []  # until the interpreter ends


def digest(tensor: Tensor) -> str:
    """Of the bits of what it shows."""
    tensor = tensor.detach()
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    bytes_of(whole).copy_(bytes_of(tensor))
    return hashlib.sha256(bytes_of(whole).cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def bytes_of(tensor: Tensor) -> Tensor:
    """The same memory as unsigned numbers of the same size, which every operation knows."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return torch.view_as_real(tensor) if tensor.element_size() == 16 else tensor.view(sizes[tensor.element_size()])


def is_inside(arena: Arena, tensor: Tensor) -> bool:
    return arena.base <= tensor.data_ptr() < arena.base + arena.window_bytes


def refusal(call: Callable[[], Any], kind: type[BaseException]) -> str:
    try:
        call()
    except kind as exc:
        return str(exc)
    raise AssertionError(f"no {kind.__name__}")


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.norm = nn.BatchNorm1d(64)
        self.frozen = nn.Linear(64, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.weight.requires_grad_(False)
        self.register_buffer("turns", torch.arange(64, dtype=torch.float32), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.frozen(self.norm(self.embedding(tokens))) + self.turns)


def tokens() -> Tensor:
    return torch.arange(32, device=CUDA)


def kinds(number: int, kind: torch.dtype) -> Tensor:
    """Some bits of this type; not all of them are numbers."""
    size = torch.empty((), dtype=kind).element_size()
    bits = (torch.arange(24 * size, device=CUDA) * (number + 3) % 2).to(torch.uint8)
    return bits.view(kind).view(4, 6).t() if kind is not torch.bool else bits.bool().view(4, 6).t()


def write_kinds(name: str) -> None:
    arena = Arena.create(name, 64 * MIB)
    with pool(arena):
        tensors = {str(kind).removeprefix("torch."): kinds(number, kind) for number, kind in enumerate(KINDS)}
        tensors |= {"empty": torch.empty(0, 3, device=CUDA), "scalar": torch.tensor(7, device=CUDA)}
    save(arena, tensors)
    say(**{each: digest(tensor) for each, tensor in tensors.items() if each != "empty"})
    die()


def read_kinds(name: str) -> None:
    found = load(adopt(name, wait=60))
    assert tuple(found["empty"].shape) == (0, 3)
    say(**{each: digest(tensor) for each, tensor in found.items() if each != "empty"})


def write_module(name: str) -> None:
    torch.manual_seed(1)
    arena = Arena.create(name, 64 * MIB)
    with CUDA, pool(arena):
        model = Tied()
        model(tokens())  # moves the norm's statistics
    save(arena, {"model": model, "extra": {"of": "checks"}})
    model.eval()
    say(digest=digest(model(tokens())), tensors=len(list(arena)))
    die()


def read_module(name: str) -> None:
    arena = adopt(name, wait=60)
    with torch.device("meta"):
        model = Tied()
    load_into(arena, model)
    model.eval()
    assert model.head.weight is model.embedding.weight
    assert (model.frozen.weight.requires_grad, model.head.weight.requires_grad) == (False, True)
    assert all(is_inside(arena, each) for each in model.parameters())
    assert refusal(lambda: load_into(arena, nn.Linear(2, 2)), LayoutError)
    say(digest=digest(model(tokens())), tensors=len(list(arena)), of=arena.extra["of"])


def build() -> dict[str, Any]:
    torch.manual_seed(2)
    return {"model": Tied(), "kv": [torch.ones(8, 8), torch.zeros(3)], "extra": {"built": time.time()}}


def keep_and_die(name: str) -> None:
    kept = keep(name, build, capacity=64 * MIB)
    kept.state["kv"][1] += 1
    torch.cuda.synchronize()
    say(is_adopted=kept.is_adopted, count=float(kept.state["kv"][1].sum()), built=kept.extra["built"])
    die()


def half_build(name: str) -> None:
    def broken() -> dict[str, Any]:
        build()
        die()
        return {}

    keep(name, broken, capacity=64 * MIB)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(tokens()), tokens())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train_and_die(name: str) -> None:
    torch.manual_seed(3)
    arena = Arena.create(name, 64 * MIB)
    with CUDA, pool(arena):
        model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 3)
    state = optimizer.state_dict()
    moments = {str(number): each for number, each in state["state"].items()}
    save(arena, {"model": model, "optimizer": moments, "extra": state["param_groups"]}, copy=True)
    say(weights=digest(model.head.weight))
    die()


def train_on(name: str) -> None:
    arena = adopt(name, wait=60)
    with torch.device("meta"):
        model = Tied()
    load_into(arena, model)
    weights = digest(model.head.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state: dict[int, dict[str, Tensor]] = {}
    for each, tensor in load(arena).items():
        kind, _, rest = each.partition(".")
        if kind == "optimizer":
            number, _, what = rest.partition(".")
            state.setdefault(int(number), {})[what] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": arena.extra})
    say(weights=weights, losses=train(model, optimizer, 2))


def train_through(name: str) -> None:
    """The same five steps without an arena; the last two of them."""
    torch.manual_seed(3)
    with CUDA:
        model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    say(losses=train(model, optimizer, 5)[3:], name=name)


def leave_everything(name: str) -> None:
    """Close nothing; tensors, pool and arena end with the interpreter, in any order."""
    arena = Arena.create(name, 64 * MIB)
    with CUDA, pool(arena):
        held.extend([torch.ones(MIB), Tied(), arena])
    save(arena, {"model": held[1], "ones": held[0]})
    held.extend([load(arena), pool(arena)])
    say(left=True)


def read_only(name: str) -> None:
    with Arena.read(name) as arena:
        found = load(arena)
        shown = digest(found["x"])
        refusal(partial(save, arena, found), PermissionError)
        del found
    say(digest=shown)


def write_pieces(name: str, pieces: int = 1) -> None:
    arena = Arena.create(name, (pieces + 40) * 2 * MIB)
    with CUDA, pool(arena):
        weights, out = torch.randn(256, 256), torch.zeros(16, 256)
    for _ in range(pieces):
        arena.allocate(2 * MIB)
    save(arena, {"weights": weights, "out": out})
    die()


write_many_pieces = partial(write_pieces, pieces=2000)


def stand_by(name: str) -> None:
    """A graph that writes to the arena is captured while that is mapped to read, and runs when it may."""
    service = Service(name, capacity=64 * MIB, schema={"step": "uint64"})  # before CUDA begins
    x = torch.ones(16, 256, device=CUDA)
    arena = service.open()
    found = load(arena)
    weights, out = found["weights"], found["out"]
    own = torch.zeros_like(out)
    graph = capture(lambda: out.copy_(x @ weights), lambda: own.copy_(x @ weights))
    torch.cuda.synchronize()
    was_zero, pieces = not bool(out.any()), len(arena.blocks())
    with service.active(60.0) as term:
        mapped_ns = time.monotonic_ns()
        graph.replay()
        torch.cuda.synchronize()
        done_ns = time.monotonic_ns()
        is_same = torch.equal(out, own)
        out.add_(1)
        is_written = torch.equal(out, own + 1)
        term.publish(step=1)
    say(
        is_right=[was_zero, is_same, is_written],
        pieces=pieces,
        mapped_ms=(mapped_ns - term.promoted_ns) / 1e6,
        replayed_ms=(done_ns - mapped_ns) / 1e6,
    )


def rehearse(name: str) -> None:
    """Rehearse a step, capture it without a warm-up, and replay it in another rehearsal: the arena is as it was, and the graph
    writes to it when it may."""
    service = Service(name, capacity=64 * MIB, schema={"step": "uint64"})  # before CUDA begins
    x = torch.ones(16, 256, device=CUDA)
    arena = service.open()
    found = load(arena)
    weights, out = found["weights"], found["out"]
    wanted = x @ weights
    seen: list[bool] = []

    def step() -> None:
        out.copy_(x @ weights)  # a kernel, and a copy where PyTorch makes it one
        out.add_(torch.rand(1, device=CUDA) * 0 + 1)

    def watched() -> None:
        step()
        seen.append(torch.equal(out, wanted + 1))

    def replay() -> None:
        out.zero_()
        graph.replay()
        seen.append(torch.equal(out, wanted + 1))

    generator, began_ns = rng_state(), time.monotonic_ns()
    seen.append(service.rehearse(watched))
    took_ms = (time.monotonic_ns() - began_ns) / 1e6
    seen += [not bool(out.any()), rng_state() == generator]
    graph = capture(step)
    seen += [service.rehearse(replay, writes=["out"]), not bool(out.any())]
    with service.active(60.0) as term:
        began_ns = time.monotonic_ns()
        graph.replay()
        torch.cuda.synchronize()
        done_ns = time.monotonic_ns()
        seen.append(torch.equal(out, wanted + 1))
        term.publish(step=1)
    say(is_right=seen, pieces=len(arena.blocks()), rehearsed_ms=took_ms, replayed_ms=(done_ns - began_ns) / 1e6)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
