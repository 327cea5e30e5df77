"""The memory of an open arena: blocks in its window, who has some of it, and when it may go."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mpsd_client import _cuda
from mpsd_client._dlpack import Exports
from mpsd_client._layout import DATA_TYPES, Spans
from mpsd_client._native import ffi, lib
from mpsd_client._session import Session
from mpsd_client._tensor import Tensor

LIST_AT_ONCE = 1024  # allocations


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that was allocated at once.  address, offset, bytes: multiples of 2 MiB; offset: in the window.

    is_committed: an adopter gets it.  is_adopted: it was there when this process opened the arena.
    """

    address: int
    bytes: int
    offset: int
    is_committed: bool = False
    is_adopted: bool = False


class Window:
    """What is mapped.  Guards that nothing is unmapped while somebody has it.

    It stays open until `close`, or the end of the process: dropping the object does not unmap what others may point at.  Of any
    thread.  After fork it is of no use to the child, which opens the arena again if it wants it.

    Raises: Refused (mpsd said no: NO_ROOM, STALE_GENERATION, ...), CudaError, OSError (mpsd is not there; ENOSPC: over the
    capacity), ValueError (it is closed).
    """

    def __init__(self, session: Session, handle: Any, name: str, is_writable: bool) -> None:
        """Not to be called: see Arena's class methods.  Takes session and handle."""
        self._session, self._handle, self._pid = session, handle, os.getpid()
        self._lock = threading.RLock()  # protects what is below; the C library has its own
        self._exports = Exports()
        self._lent: weakref.WeakSet[Tensor] = weakref.WeakSet()  # whose addresses somebody asked for
        self._before_close: Callable[[], None] | None = None
        self.attached: Any = None  # what mpsd_client.torch keeps for as long as the arena is open
        self.device = int(lib.mpsd_arena_device(handle))
        self.is_writable = is_writable
        self.name = name
        self.gpu = ffi.string(lib.mpsd_arena_gpu(handle)).decode()
        self.id = int(lib.mpsd_arena_id(handle))
        self.base = int(lib.mpsd_arena_base(handle))
        self.window_bytes = int(lib.mpsd_arena_window_bytes(handle))

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Block:
        """Memory of at least `size` bytes, its contents undefined; in the arena for good from the next commit on.

        Raises OSError (ENOSPC: over the capacity, or no place in the window), CudaError (2: the GPU has no memory left).
        """
        address = ffi.new("uint64_t *")
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_alloc(handle, size, address))
            return self._block(address[0])

    def free(self, block: Block | int) -> None:
        """Gives a block back, or the one at this address; from the next commit on it is gone for adopters too.

        The GPU must be done with it: synchronize first.  Raises FileNotFoundError: there is no such block.
        """
        address = block if isinstance(block, int) else block.address
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_free(handle, address))

    def blocks(self) -> list[Block]:
        """By address; those that came with `open` too."""
        found, after = [], 0
        rows = ffi.new("struct mpsd_allocation[]", LIST_AT_ONCE)
        with self._lock:
            while count := self._session.check(lib.mpsd_arena_list(self._open_handle(), after, rows, LIST_AT_ONCE)):
                found += [self._as_block(rows[number]) for number in range(count)]
                after = found[-1].address + found[-1].bytes
        return found

    def flush(self) -> None:
        """Tells mpsd of what was allocated; otherwise that waits for others, or for `commit`.  A quota is known only then:
        Refused, NO_ROOM."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_flush(handle))

    @property
    def generation(self) -> int:
        """Counts the writers that there were."""
        with self._lock:
            return int(lib.mpsd_arena_generation(self._open_handle()))

    @property
    def committed(self) -> int:
        """The number of the commit that is mapped, as mpsd counts them; 0: none, or not known."""
        with self._lock:
            return int(lib.mpsd_arena_committed(self._open_handle()))

    @property
    def capacity_bytes(self) -> int:
        with self._lock:
            return int(lib.mpsd_arena_capacity_bytes(self._open_handle()))

    @property
    def used_bytes(self) -> int:
        """As they count against the capacity, committed or not."""
        with self._lock:
            return int(lib.mpsd_arena_used_bytes(self._open_handle()))

    def spans(self) -> Spans:
        """Where it has memory now."""
        return Spans.of((block.offset, block.bytes) for block in self.blocks())

    def copy_out(self, address: int, size: int) -> bytes:
        """Memory of it, in host memory."""
        with self._working():
            return _cuda.copy_out(address, size) if size else b""

    def copy_in(self, address: int, data: bytes) -> None:
        with self._working():
            if data:
                _cuda.copy_in(address, data)

    # -- who has some of it ------------------------------------------------------------------------------------------

    def lend(self, tensor: Tensor, is_versioned: bool) -> Any:
        """A DLPack capsule of a tensor of ours; it counts until its last user is gone."""
        with self._lock:
            self._open_handle()
            return self._exports.capsule(
                tensor.address,
                self.device,
                DATA_TYPES[tensor.dtype],
                tensor.shape,
                tensor.strides,
                is_versioned=is_versioned,
                is_read_only=tensor.is_read_only,
            )

    def note(self, tensor: Tensor) -> None:
        """Somebody has this tensor's address, and keeps the tensor while it uses it."""
        with self._lock:
            self._open_handle()
            self._lent.add(tensor)

    def before_close(self, call: Callable[[], None]) -> None:
        """Called when it is to be closed, before anything goes; what it raises keeps the arena open."""
        self._before_close = call

    @property
    def lent(self) -> int:
        """How many tensors that others made of our memory are still there."""
        return self._exports.out + len(self._lent)

    # -- the end -----------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Nobody can change what is committed any more; any number may read it.  Refused while something is not committed."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_seal(handle))
            self.is_writable = False

    def close(self) -> None:
        """Unmaps everything and gives the arena back; twice does nothing.  The GPU must be done with it.

        Raises BufferError, and stays open, while somebody still has memory of it: a tensor made of one of ours, or one of
        PyTorch's in the arena's pool.
        """
        with self._lock:
            if self._handle is None:
                return
            if self._pid != os.getpid():
                self.forget()
                return
            if self._before_close is not None:
                self._before_close()
            self._require_nobody()
            handle, self._handle = self._handle, None
            self._lent.clear()
            with _cuda.on_device(self.device):
                result = lib.mpsd_arena_close(handle)
            try:
                self._session.check(result)
            finally:
                self._session.close()

    def forget(self) -> None:
        """Frees host memory alone: for a child after fork, and where the CUDA context is lost.  mpsd learns of it by the end of
        the process."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                lib.mpsd_arena_forget(handle)
                self._session.close()

    def _require_nobody(self) -> None:
        if self.lent:
            gc.collect()  # modules and their parameters die in cycles
        if self.lent:
            raise BufferError(f"arena {self.name} has {self.lent} tensors out: drop them before you close it")

    @property
    def is_closed(self) -> bool:
        return self._handle is None

    def __repr__(self) -> str:
        return f"<Arena {self.name!r} {'closed' if self._handle is None else f'at {self.base:#x}'}>"

    # -- for what builds on it ---------------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """The `struct mpsd_arena *`, for other functions of mpsd_client._native."""
        with self._lock:
            return self._open_handle()

    def _open_handle(self) -> Any:
        if self._handle is None:
            raise ValueError(f"arena {self.name} is closed")
        if self._pid != os.getpid():
            raise ValueError(f"arena {self.name} was opened by the parent of this process: open it again")
        return self._handle

    @contextmanager
    def _working(self) -> Iterator[Any]:
        """Where memory is mapped and unmapped: the GPU's context is current, and the arena stays open."""
        with self._lock:
            handle = self._open_handle()
            with _cuda.on_device(self.device):
                yield handle

    def _block(self, address: int) -> Block:
        found = ffi.new("struct mpsd_allocation *")
        self._session.check(lib.mpsd_arena_find(self._open_handle(), address, found))
        return self._as_block(found)

    def _as_block(self, found: Any) -> Block:
        address = int(found.address)
        flags = bool(found.is_committed), bool(found.is_adopted)
        return Block(address, int(found.bytes), address - self.base, *flags)
