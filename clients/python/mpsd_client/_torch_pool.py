"""Pools of PyTorch's caching allocator in an arena: mpsd_client._native allocates their blocks; and the end of a pool."""

import ctypes
import functools
import gc
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from mpsd_client._native import lib
from mpsd_client._window import Window


@dataclass(slots=True)
class Attached:
    """The pools and tensors of PyTorch that belong to an arena while this process has it open."""

    pool: Any = None  # torch.cuda.MemPool
    generation: int = 0  # of the arena, when the pool was made
    past: list[Any] = field(default_factory=list)  # pools of earlier terms of this process, which may still have tensors
    users: int = 0  # threads inside `pool`
    lock: threading.Lock = field(default_factory=threading.Lock)  # protects the fields above
    pinned: "list[Pinned]" = field(default_factory=list)

    @property
    def pools(self) -> list[Any]:
        return self.past if self.pool is None else [*self.past, self.pool]

    def held_bytes(self) -> int:
        """Return the bytes of live PyTorch tensors in the pools."""
        return sum(int(segment["allocated_size"]) for made in self.pools for segment in made.snapshot())


@dataclass(slots=True)
class Pinned:
    """A tensor of the last save.  Its memory is not reused until the next save, even if the program drops the tensor."""

    of: Callable[[], Any]  # None once the program has dropped it
    memory: Any  # the tensor detached, without its gradient

    @classmethod
    def tensor(cls, tensor: Any) -> "Pinned":
        return cls(weakref.ref(tensor), tensor.detach())


def attached(arena: Window) -> Attached:
    if arena.attached is None:
        arena.attached = Attached()
        arena.before_close(lambda: _end_pool(arena))
    found: Attached = arena.attached
    return found


@functools.cache
def _allocator() -> Any:
    """Return the allocator, one for the life of the process: PyTorch may free memory through it long after its pool is gone."""
    path = importlib.import_module("mpsd_client._native").__file__
    made = torch.cuda.memory.CUDAPluggableAllocator(path, "mpsd_torch_alloc", "mpsd_torch_free")
    _never_at_exit(made.allocator())
    return made


def _never_at_exit(made: Any) -> Any:
    """Leak one reference, so that the exit of the interpreter does not unmap block by block what the kernel frees at once."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


@contextmanager
def pool(arena: Window) -> Iterator[None]:
    """Place PyTorch's allocations of this thread on the arena's GPU in the arena, inside the `with` block.

    They go through PyTorch's caching allocator: blocks of 2 MiB or more, shared by small tensors.  A second `with` continues
    the same pool, or starts a new one if another process was the writer in between.  Raises torch.OutOfMemoryError beyond the
    capacity.  Allocations of other threads (backward() has its own) are not in the pool.  Do not use expandable_segments, which
    takes no memory from pools.
    """
    if not arena.is_writable:
        raise ValueError(f"arena {arena.name} is open for reading: only its writer puts something into it")
    torch.cuda.init()
    mine, handle = attached(arena), arena.handle
    with torch.cuda.device(arena.device):
        with mine.lock:
            if mine.pool is not None and mine.generation != arena.generation:
                _retire(mine, handle)
            if mine.pool is None:
                mine.pool, mine.generation = _never_at_exit(torch.cuda.MemPool(_allocator().allocator())), arena.generation
            mine.users += 1
        before = lib.mpsd_torch_use(arena.device, handle)
        try:
            with torch.cuda.use_mem_pool(mine.pool):
                yield
        finally:
            lib.mpsd_torch_use(arena.device, before)
            with mine.lock:
                mine.users -= 1


def _retire(mine: Attached, handle: Any) -> None:
    """Stop allocating from the pool and freeing to it: the free memory in its blocks may belong to another process now."""
    lib.mpsd_torch_forget(handle)
    mine.past.append(mine.pool)
    mine.pool = None


def _end_pool(arena: Window) -> None:
    """Release the pools before the arena is unmapped.  Raises BufferError, and keeps the pools, while a thread is inside `pool`
    or a PyTorch tensor is still in them."""
    mine = attached(arena)
    if mine.users:
        raise BufferError(f"arena {arena.name}: its pool is in use")
    kept, mine.pinned = [each.of for each in mine.pinned], []
    if not mine.pools:
        lib.mpsd_torch_forget(arena.handle)
        return
    torch.cuda.synchronize(arena.device)
    if mine.held_bytes():
        gc.collect()
    if held := mine.held_bytes():
        mine.pinned = [Pinned.tensor(tensor) for of in kept if (tensor := of()) is not None]
        raise BufferError(f"arena {arena.name}: PyTorch has {held} bytes in its pool: drop those tensors before you close it")
    drop_pool(arena)
    lib.mpsd_torch_forget(arena.handle)


def drop_pool(arena: Window) -> None:
    """Drop the pools: PyTorch frees empty blocks at once through mpsd_torch_free, the others with their last tensor."""
    mine = attached(arena)
    made = list(mine.pools)
    mine.pool, mine.past = None, []
    with torch.cuda.device(arena.device):
        while made:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(made[-1]))
            made.pop()
