"""A member of an example that uses PyTorch, on the simulator: PyTorch computes on the CPU, in the arena's own memory, which the
simulator maps into the process.

    torch_member.py EXAMPLE --report FILE [...]     an example of clients/python/examples, without .py, and its arguments

The term of generation 1 never ends its fourth step: it has written something, and FILE.cut is there.  That of generation 2 is
in its second step until it is told to yield.  Not as on a GPU: without a `pool`, the first member builds elsewhere and copies.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python/examples"))

import torch
from mpsd_client import Arena, Layout, Service, TensorSpec, Term, _torch_load
from mpsd_client._naming import flatten

CUT_AT = 3
HOLD_SECONDS = 200.0  # at most: somebody ends it


def begin_cuda() -> None:
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def tensor_of(arena: Arena, name: str) -> Any:
    """On the CPU, at the tensor's address."""
    found = arena[name]
    kind = getattr(torch, found.dtype)
    memory = (ctypes.c_char * found.nbytes).from_address(found.address)
    assert found.nbytes == prod(found.shape) * kind.itemsize
    return torch.frombuffer(memory, dtype=kind).view(found.shape)


def save(arena: Arena, state: dict[str, Any]) -> None:
    """Copies, since there is no pool."""
    extra = state.pop("extra")
    tensors = flatten(state, lambda value: isinstance(value, torch.Tensor), lambda module: dict(module.named_parameters()))
    block = arena.allocate(sum(-(-each.nbytes // 256) * 256 for each in tensors.values()))
    specs, offset = {}, block.offset
    for name, each in tensors.items():
        specs[name] = TensorSpec(offset, str(each.dtype).removeprefix("torch."), tuple(each.shape), tuple(each.stride()))
        offset += -(-each.nbytes // 256) * 256
    for name, spec in specs.items():
        each = tensors[name].contiguous()
        ctypes.memmove(arena.base + spec.offset, each.data_ptr(), each.nbytes)
    arena.commit(Layout(specs, extra))


def build(self: Any, arena: Arena) -> Any:
    """As the examples do it, and then it adopts what it has built."""
    example = sys.modules[type(self).__module__]
    if hasattr(example, "DiT"):
        model, latents = example.skeleton(self.asked)
        model.fill(self.asked.seed)
        save(arena, {"model": model, "latents": latents, "extra": self.about})
    else:
        sets, losses = example.allocate(self.asked.steps)
        save(arena, {"sets": sets, "losses": losses, "extra": self.about})
    self.adopt(arena)
    return self.sampler if hasattr(example, "DiT") else self.training


def held(step: Callable[[Any, int], None], terms: list[Term]) -> Callable[[Any, int], None]:
    def spoil(self: Any, number: int) -> None:
        target = [self.latents[(number + 1) % 2]] if hasattr(self, "latents") else self.sets[(number + 1) % 2].values()
        for each in target:
            each.fill_(7)

    def wrapped(self: Any, number: int) -> None:
        deadline = time.monotonic() + HOLD_SECONDS
        if terms and (terms[-1].generation, number) == (1, CUT_AT):
            spoil(self, number)
            Path(f"{sys.argv[sys.argv.index('--report') + 1]}.cut").touch()
            time.sleep(HOLD_SECONDS)
        while terms and (terms[-1].generation, number) == (2, CUT_AT + 1) and not terms[-1].is_over:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        step(self, number)

    return wrapped


def main() -> None:
    name = sys.argv.pop(1)
    example = import_module(name)
    terms: list[Term] = []
    opened = Service.open
    Service.open = lambda self: (self.on_promote(terms.append), opened(self))[1]
    does = example.Sampler if hasattr(example, "Sampler") else example.Training
    does.step = held(does.step, terms)
    torch.cuda.init, torch.cuda.synchronize = begin_cuda, lambda: None
    torch.set_num_threads(1)  # alike in all members, and fair to others
    _torch_load.tensor_of = tensor_of
    example.Member.build = build
    example.main()


if __name__ == "__main__":
    main()
