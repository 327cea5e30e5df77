"""member.py of the LLM example with its model in PyTorch, on the simulator (torch_on_a_cpu.py).

    llm_torch_member.py --service llm --backend $XDG_RUNTIME_DIR/llm.sock --shape tiny [...]
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python/examples/llm"))

import member
from makers import TorchMaker, require_same
from mpsd_client import Arena
from mpsd_client.torch import load, load_into
from torch_on_a_cpu import begin_cuda, save, use_cpu


class Maker(TorchMaker):
    """On the CPU, in an arena."""

    def begin(self) -> None:
        begin_cuda()
        super().begin()

    def build(self, arena: Arena) -> None:
        save(arena, self.engine.build(self.seed) | {"extra": self.extra})
        self.adopt(arena)

    def adopt(self, arena: Arena) -> None:
        from torch_engine import captured

        require_same(arena, self.extra)
        self.engine.adopt(lambda model: load_into(arena, model), load(arena))
        self.engine.warm(captured)


def maker_of(options: Any, size: Any) -> Maker:
    return Maker(options.shape, size, options.seed, "cpu")


if __name__ == "__main__":
    use_cpu(Maker)
    member.maker_of = maker_of
    member.main()
