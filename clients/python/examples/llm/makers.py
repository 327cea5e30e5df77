"""Makers of engines with private memory, or with memory in an arena that the first member builds and all others adopt.

`begin` initializes CUDA in this process; a member of a service calls it only after it has enlisted.
"""

import ctypes
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from engine import Engine
from scheduler import Size
from toy import CELL_BYTES, PlainMemory, ToyEngine

if TYPE_CHECKING:
    from mpsd_client import Arena

ROUNDING_BYTES = 256 << 20  # allowance for unused parts of PyTorch's blocks


class Maker(Protocol):
    """Makes an engine.  engine: the last one made."""

    engine: Engine

    @property
    def capacity_bytes(self) -> int:
        """The capacity that an arena needs."""

    def begin(self) -> None:
        """Create the CUDA context."""

    def plain(self) -> None:
        """Make an engine in private memory."""

    def sleeping(self) -> "Sleeper":
        """Make an engine that only lacks `wake`."""

    def build(self, arena: "Arena") -> None:
        """Make an engine in an arena without a commit, and commit its memory."""

    def adopt(self, arena: "Arena") -> None:
        """Make an engine in an arena that another process has built, which may be open for reading.  Raises ValueError if the
        arena was built with other settings."""


class Sleeper(Protocol):
    def wake(self) -> None: ...


def require_same(arena: "Arena", wanted: Mapping[str, Any]) -> None:
    if arena.extra != wanted:
        raise ValueError(f"arena {arena.name} holds something else: {arena.extra}, where this member was started for {wanted}")


class TorchMaker:
    def __init__(self, shape: str, size: Size, seed: int, device: str) -> None:
        from model import SHAPES

        self.shape, self.size, self.seed, self.device = SHAPES[shape], size, seed, device
        self.extra = {"engine": "torch", "cache": "by page", "shape": shape, "seed": seed, **asdict(size)}
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

        self._be_small()
        with pool(arena):
            state = self.engine.build(self.seed)
        save(arena, state | {"extra": self.extra})
        self.engine.warm(capture)

    def adopt(self, arena: "Arena") -> None:
        from mpsd_client.torch import capture, load, load_into

        require_same(arena, self.extra)
        self._be_small()
        self.engine.adopt(lambda model: load_into(arena, model), load(arena))
        self.engine.warm(capture)

    def _be_small(self) -> None:
        """Shrink the GPU memory of stacks, since each standby costs GPU memory."""
        from mpsd_client.torch import shrink_stacks

        if self.device != "cpu":
            shrink_stacks(16)  # these kernels use no stack; the first launch of one that does enlarges it


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
        """Make the primary context current in this thread."""
        if not self.has_gpu:
            return
        self.driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        call(self.driver, "cuInit", 0)
        call(self.driver, "cuDeviceGet", ctypes.byref(device), 0)
        call(self.driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call(self.driver, "cuCtxSetCurrent", context)

    def plain(self) -> None:
        make = partial(GpuMemory, self.driver) if self.has_gpu else PlainMemory
        memories = [make(count) for count in self.cells.values()]
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


def call(driver: ctypes.CDLL, name: str, *arguments: Any) -> None:
    if status := getattr(driver, name)(*arguments):
        raise RuntimeError(f"{name}: error {status}")


class GpuMemory:
    """Cells in private GPU memory; each access is one copy by the driver."""

    def __init__(self, driver: ctypes.CDLL, count: int) -> None:
        self._driver, memory = driver, ctypes.c_uint64()
        call(driver, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(CELL_BYTES * count))
        self._address = memory.value
        call(driver, "cuMemsetD32_v2", memory, 0, ctypes.c_size_t(count))

    def read(self, first: int, count: int) -> "array[int]":
        cells = array("I", bytes(CELL_BYTES * count))
        self._copy("cuMemcpyDtoH_v2", cells.buffer_info()[0], self._address + CELL_BYTES * first, cells)
        return cells

    def write(self, first: int, cells: "array[int]") -> None:
        self._copy("cuMemcpyHtoD_v2", self._address + CELL_BYTES * first, cells.buffer_info()[0], cells)

    def _copy(self, name: str, to: int, source: int, cells: "array[int]") -> None:
        call(self._driver, name, ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(CELL_BYTES * len(cells)))


class ArenaMemory:
    """Cells in an arena; each access is one copy by the driver."""

    def __init__(self, arena: "Arena", name: str) -> None:
        self._arena, self._address = arena, arena[name].address

    def read(self, first: int, count: int) -> "array[int]":
        return array("I", self._arena.copy_out(self._address + CELL_BYTES * first, CELL_BYTES * count))

    def write(self, first: int, cells: "array[int]") -> None:
        self._arena.copy_in(self._address + CELL_BYTES * first, cells.tobytes())
