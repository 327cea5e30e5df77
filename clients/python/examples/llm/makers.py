"""Engines and where their memory is: of this process, or in an arena, built by whoever comes first and adopted by all others.

To make one begins CUDA in this process, which a member of a service does after it has enlisted.
"""

import ctypes
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from engine import Engine
from scheduler import Size
from toy import CELL_BYTES, PlainMemory, ToyEngine

if TYPE_CHECKING:
    from mpsd_client import Arena

ROUNDING_BYTES = 256 << 20  # what PyTorch's blocks may have more than is used of them


class Maker(Protocol):
    """Makes an engine, of which it keeps the last one."""

    engine: Engine

    @property
    def capacity_bytes(self) -> int:
        """That an arena needs."""

    def begin(self) -> None:
        """Makes the context."""

    def plain(self) -> None:
        """In this process's own memory."""

    def sleeping(self) -> "Sleeper":
        """Almost ready: what is left to do is `wake`."""

    def build(self, arena: "Arena") -> None:
        """In an arena in which nothing was committed so far, and commits it."""

    def adopt(self, arena: "Arena") -> None:
        """In an arena that somebody has built, which may be open for reading.  Raises ValueError: it was for another model."""


class Sleeper(Protocol):
    def wake(self) -> None: ...


def require_same(arena: "Arena", wanted: Mapping[str, Any]) -> None:
    if arena.extra != wanted:
        raise ValueError(f"arena {arena.name} holds something else: {arena.extra}, where this member was started for {wanted}")


class TorchMaker:
    def __init__(self, shape: str, size: Size, seed: int, device: str) -> None:
        from model import SHAPES

        self.shape, self.size, self.seed, self.device = SHAPES[shape], size, seed, device
        self.extra = {"engine": "torch", "shape": shape, "seed": seed, **asdict(size)}
        self.engine: Any = None

    @property
    def capacity_bytes(self) -> int:
        shape, size = self.shape, self.size
        cache = shape.layers * 2 * size.pages * size.page * shape.kv_heads * shape.head
        others = 4 * (size.slots + 1) * size.length + 4 * size.length * shape.head
        return int(1.05 * (2 * (shape.parameters + cache) + others)) + ROUNDING_BYTES

    def begin(self) -> None:
        from torch_engine import TorchEngine

        self.engine = TorchEngine(self.shape, self.size, self.device)

    def plain(self) -> None:
        from torch_engine import captured

        self.engine.build(self.seed)
        self.engine.warm(captured)

    def sleeping(self) -> Sleeper:
        from torch_engine import Asleep

        return Asleep(self.engine, self.seed)

    def build(self, arena: "Arena") -> None:
        from mpsd_client.torch import capture, pool, save

        with pool(arena):
            state = self.engine.build(self.seed)
        save(arena, state | {"extra": self.extra})
        self.engine.warm(capture)

    def adopt(self, arena: "Arena") -> None:
        from mpsd_client.torch import capture, load, load_into

        require_same(arena, self.extra)
        self.engine.adopt(lambda model: load_into(arena, model), load(arena))
        self.engine.warm(capture)


class ToyMaker:
    def __init__(self, size: Size, pace_seconds: float, *, has_gpu: bool) -> None:
        self.size, self.pace_seconds, self.has_gpu = size, pace_seconds, has_gpu
        self.extra = {"engine": "toy", **asdict(size)}
        self.cells = {"cache": size.pages * size.page, "history": size.slots * size.length}
        self.engine: Any = None

    @property
    def capacity_bytes(self) -> int:
        return sum(CELL_BYTES * count + (2 << 20) for count in self.cells.values())

    def begin(self) -> None:
        """The primary context, current in this thread."""
        if not self.has_gpu:
            return
        driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        for name, *arguments in (
            ("cuInit", 0),
            ("cuDeviceGet", ctypes.byref(device), 0),
            ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
            ("cuCtxSetCurrent", context),
        ):
            if status := getattr(driver, str(name))(*arguments):
                raise RuntimeError(f"{name}: error {status}")

    def plain(self) -> None:
        memories = [PlainMemory(count) for count in self.cells.values()]
        self.engine = ToyEngine(self.size, memories[0], memories[1], self.pace_seconds)

    def sleeping(self) -> Sleeper:
        raise ValueError("the toy engine has nothing that could sleep")

    def build(self, arena: "Arena") -> None:
        from mpsd_client import Layout, TensorSpec

        tensors = {}
        for name, count in self.cells.items():
            tensors[name] = TensorSpec(arena.allocate(CELL_BYTES * count).offset, "uint32", (count,), (1,))
        arena.commit(Layout(tensors, self.extra))
        self.adopt(arena)

    def adopt(self, arena: "Arena") -> None:
        require_same(arena, self.extra)
        memories = [ArenaMemory(arena, name) for name in self.cells]
        self.engine = ToyEngine(self.size, memories[0], memories[1], self.pace_seconds)


class ArenaMemory:
    """Cells on the GPU, one copy by the driver for each access."""

    def __init__(self, arena: "Arena", name: str) -> None:
        self._arena, self._address = arena, arena[name].address

    def read(self, first: int, count: int) -> "array[int]":
        return array("I", self._arena.copy_out(self._address + CELL_BYTES * first, CELL_BYTES * count))

    def write(self, first: int, cells: "array[int]") -> None:
        self._arena.copy_in(self._address + CELL_BYTES * first, cells.tobytes())
