"""A member of an example that uses PyTorch, on the simulator (torch_on_a_cpu.py).

    torch_member.py EXAMPLE --report FILE [...]     an example of clients/python/examples, without .py, and its arguments

The term of generation 1 never ends its fourth step: it has written some data, and FILE.cut exists. The term of generation 2
stays in its second step until mpsd asks it to yield.
"""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python/examples"))

from mpsd_client import Arena, Service, Term
from torch_on_a_cpu import save, use_cpu

CUT_AT = 3
HOLD_SECONDS = 200.0  # at most: the test ends it


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
    use_cpu(example.Member)
    example.Member.build = build
    example.main()


if __name__ == "__main__":
    main()
