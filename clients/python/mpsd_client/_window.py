"""The memory of an open arena: the blocks in its window, the tensors lent to other libraries, and the close."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpsd_client import _cuda
from mpsd_client._dlpack import Exports
from mpsd_client._layout import DATA_TYPES, Spans
from mpsd_client._native import ffi, lib
from mpsd_client._session import Session
from mpsd_client._tensor import Tensor

if TYPE_CHECKING:
    from mpsd_client._image import Taking

LIST_AT_ONCE = 1024  # allocations


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation.  address, offset, bytes: multiples of 2 MiB; offset: from the start of the window.

    is_committed: processes that adopt the arena get it.  is_adopted: it existed when this process opened the arena.
    """

    address: int
    bytes: int
    offset: int
    is_committed: bool = False
    is_adopted: bool = False


class Window:
    """The mapped memory of an arena; it refuses to unmap memory that other libraries use.

    The arena stays open until `close` or the end of the process: dropping the object does not unmap memory that others may
    point to.  Any thread may use it.  A forked child cannot use it and has to open the arena itself.

    Raises: Refused (by mpsd: NO_ROOM, STALE_GENERATION, ...), CudaError, OSError (no connection to mpsd; ENOSPC: over the
    capacity), ValueError (the arena is closed).
    """

    def __init__(self, session: Session, handle: Any, name: str, is_writable: bool) -> None:
        """Take over session and handle.  Programs use the class methods of Arena instead."""
        self._session, self._handle, self._pid = session, handle, os.getpid()
        self._lock = threading.RLock()  # protects the fields below; the C library has its own lock
        self._exports = Exports()
        self._lent: weakref.WeakSet[Tensor] = weakref.WeakSet()  # tensors whose addresses another library has asked for
        self._before_close: Callable[[], None] | None = None
        self._taking: Taking | None = None  # the last image
        self._is_rehearsing = False  # its addresses show copies (_copies), which must not be unmapped or made read-only
        self._copied: Sequence[Block] = ()  # then, the blocks of which it has copies
        self.attached: Any = None  # mpsd_client.torch keeps an object here while the arena is open
        self.device = int(lib.mpsd_arena_device(handle))
        self.is_writable = is_writable
        self.name = name
        self.gpu = ffi.string(lib.mpsd_arena_gpu(handle)).decode()
        self.id = int(lib.mpsd_arena_id(handle))
        self.base = int(lib.mpsd_arena_base(handle))
        self.window_bytes = int(lib.mpsd_arena_window_bytes(handle))

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Block:
        """Allocate at least `size` bytes with undefined contents.  The next commit makes the block permanent.

        Raises OSError (ENOSPC: over the capacity, or no place in the window), CudaError (2: the GPU is out of memory).
        """
        address = ffi.new("uint64_t *")
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_alloc(handle, size, address))
            return self._block(address[0])

    def free(self, block: Block | int) -> None:
        """Free a block, given as a Block or by its address.  After the next commit, adopters do not get it either.

        Synchronize first: the GPU must not use the block any more.  Raises FileNotFoundError if the block does not exist.
        """
        address = block if isinstance(block, int) else block.address
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_free(handle, address))

    def blocks(self) -> list[Block]:
        """Return all blocks in the order of their addresses, adopted ones included."""
        found, after = [], 0
        rows = ffi.new("struct mpsd_allocation[]", LIST_AT_ONCE)
        with self._lock:
            while count := self._session.check(lib.mpsd_arena_list(self._open_handle(), after, rows, LIST_AT_ONCE)):
                found += [self._as_block(rows[number]) for number in range(count)]
                after = found[-1].address + found[-1].bytes
        return found

    def flush(self) -> None:
        """Send pending allocations to mpsd now; otherwise they wait for a full batch or for `commit`.  mpsd checks the quota
        only then, and refuses with NO_ROOM."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_flush(handle))

    @property
    def generation(self) -> int:
        """The number of writers that the arena has had."""
        with self._lock:
            return int(lib.mpsd_arena_generation(self._open_handle()))

    @property
    def committed(self) -> int:
        """The number of the mapped commit, as counted by mpsd; 0: none, or unknown."""
        with self._lock:
            return int(lib.mpsd_arena_committed(self._open_handle()))

    @property
    def capacity_bytes(self) -> int:
        with self._lock:
            return int(lib.mpsd_arena_capacity_bytes(self._open_handle()))

    @property
    def used_bytes(self) -> int:
        """The bytes that count against the capacity, committed or not."""
        with self._lock:
            return int(lib.mpsd_arena_used_bytes(self._open_handle()))

    def spans(self) -> Spans:
        """Return the parts of the window that have memory now."""
        return Spans.of((block.offset, block.bytes) for block in self.blocks())

    def copy_out(self, address: int, size: int) -> bytes:
        """Copy arena memory to host memory."""
        with self._working():
            return _cuda.copy_out(address, size) if size else b""

    def copy_in(self, address: int, data: bytes) -> None:
        with self._working():
            if data:
                _cuda.copy_in(address, data)

    # -- memory lent to other libraries ------------------------------------------------------------------------------

    def lend(self, tensor: Tensor, is_versioned: bool) -> Any:
        """Return a DLPack capsule of a tensor; it counts as lent until its consumer releases it."""
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
        """Record that another library has this tensor's address; it keeps the tensor alive while it uses the memory."""
        with self._lock:
            self._open_handle()
            self._lent.add(tensor)

    def before_close(self, call: Callable[[], None]) -> None:
        """Set a function that `close` calls before it unmaps anything; an exception from it keeps the arena open."""
        self._before_close = call

    @property
    def lent(self) -> int:
        """The number of live tensors that other libraries have made of this memory."""
        return self._exports.out + len(self._lent)

    # -- the end -----------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Make the committed memory immutable; any number of readers may open it.  Refused while a change is uncommitted."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_seal(handle))
            self.is_writable = False

    def close(self) -> None:
        """Unmap everything and give the arena back; a second call does nothing.  The GPU must be done with the memory.

        Raises BufferError, and leaves the arena open, while another library uses its memory: a tensor imported from it, or a
        PyTorch tensor in the arena's pool.
        """
        with self._lock:
            if self._handle is None:
                return
            if self._pid != os.getpid():
                self.forget()
                return
            self._require_no_rehearsal()
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
                if self._taking:
                    self._taking.end()

    def forget(self) -> None:
        """Free host memory only, for a forked child or after the loss of the CUDA context.  mpsd releases the arena when the
        process ends."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                lib.mpsd_arena_forget(handle)
                self._session.close()

    def _require_no_rehearsal(self) -> None:
        if self._is_rehearsing:
            raise BufferError(f"arena {self.name} is in a rehearsal: wait for its end")

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

    # -- for other modules of this package ---------------------------------------------------------------------------

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

    def _is_copied(self, offset: int, size: int) -> bool:
        """Return whether a rehearsal shows a copy of these bytes, which this process may write."""
        return any(block.offset <= offset and offset + size <= block.offset + block.bytes for block in self._copied)

    @contextmanager
    def _working(self) -> Iterator[Any]:
        """Hold the arena open and its GPU's context current while memory is mapped or unmapped."""
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
