"""Arenas: named GPU memory that outlives this process, at addresses that are the same in every process.

    with Arena.create("kv", 8 << 30) as arena:
        block = arena.allocate(1 << 30)
        arena.commit(Layout({"kv": TensorSpec(block.offset, "bfloat16", (4, 1 << 27), (1 << 27, 1))}))

    adopt("kv")["kv"]  # in another process, after this one

Prose: mpsd's docs/python.md; docs/vault.md says which memory mpsd keeps, and when.
"""

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from mpsd_client import _cuda, _layout
from mpsd_client._copies import copy_blocks, restore
from mpsd_client._entrance import Entrance
from mpsd_client._layout import DATA_TYPES, Layout, LayoutError, Spans, TensorSpec
from mpsd_client._native import ffi, lib
from mpsd_client._session import Session
from mpsd_client._state import State
from mpsd_client._tensor import Tensor
from mpsd_client._window import Block, Window

if TYPE_CHECKING:
    from mpsd_client._image import Epoch, Taking

Path = str | os.PathLike[str] | None
SLICE_SECONDS = 1.0  # longest wait in C, during which Ctrl-C has no effect


class Arena(Window):
    """An arena that this process has opened by `create`, `open`, `adopt` or `read`; a mapping of its tensors.

    Raises, in addition to Window's exceptions: OSError (EADDRINUSE: the window's addresses are in use), LookupError (the
    arena's GPU is not visible to CUDA in this process), LayoutError.
    """

    def __init__(self, session: Session, handle: Any, name: str, is_writable: bool) -> None:
        """Called by the class methods."""
        super().__init__(session, handle, name, is_writable)
        self._layout = self._fetch_layout()
        self._tensors: Layout | None = None
        self._spans: Spans | None = None  # set by the first lookup

    @classmethod
    def create(
        cls,
        name: str,
        capacity: int,
        gpu: str | int = "0",
        *,
        window: int = 0,
        mode: int = 0o600,
        ttl: float = 0.0,
        path: Path = None,
    ) -> "Arena":
        """Create an arena and open it for writing.

        name: 1 to 128 of A-Z a-z 0-9 . _ -.  capacity: the most bytes that it may hold.  gpu: mpsd's ordinal (`mpsctl devices`)
        or a UUID.  window: bytes of addresses; 0: mpsd chooses.  mode: as of a file: read permission to adopt, write to write.
        ttl: seconds that mpsd keeps it unheld; 0: until it is removed.  path: mpsd's socket.
        Raises FileExistsError if an arena of this name exists.
        """
        session = Session(path)
        try:
            options = ffi.new("struct mpsd_arena_options *")
            text = ffi.new("char[]", str(gpu).encode())
            options.gpu, options.capacity_bytes, options.window_bytes = text, capacity, window
            options.mode, options.ttl_seconds = mode, ttl
            made = lib.mpsd_arena_create(session.handle, name.encode(), options)
            if made == -errno.EEXIST:  # which mpsd calls BAD_REQUEST
                raise FileExistsError(errno.EEXIST, "there is an arena of this name", name)
            session.check(made)
            return cls._open(session, name, True, 0.0)
        except BaseException:
            session.close()
            raise

    @classmethod
    def open(cls, name: str, wait: float = 0.0, *, path: Path = None) -> "Arena":
        """Open an arena for writing, and map its last commit at the same addresses as before.

        wait: seconds, at most 3600, to wait for the end of another writer and of its GPU work; then Refused, ARENA_BUSY.  The
        request is repeated every second, so that Ctrl-C works; clients that wait in C are served before it.
        """
        return cls._begin(name, True, wait, path)

    @classmethod
    def read(cls, name: str, *, path: Path = None) -> "Arena":
        """Open an arena for reading, with or without a concurrent writer.  This library enforces read-only access: CUDA has no
        read-only exports."""
        return cls._begin(name, False, 0.0, path)

    @classmethod
    def _begin(cls, name: str, is_writable: bool, wait: float, path: Path) -> "Arena":
        session = Session(path)
        try:
            return cls._open(session, name, is_writable, wait)
        except BaseException:
            session.close()
            raise

    @classmethod
    def _open(cls, session: Session, name: str, is_writable: bool, wait: float) -> "Arena":
        out = ffi.new("struct mpsd_arena **")
        access = lib.MPSD_WRITE if is_writable else lib.MPSD_READ
        with Entrance() as entrance:
            _open_handle(session, entrance, name, access, wait, out)
            try:
                return cls(session, out[0], name, is_writable)
            except BaseException:
                lib.mpsd_arena_close(out[0])
                raise

    # -- the layout --------------------------------------------------------------------------------------------------

    def commit(self, layout: "Layout | Mapping[str, Any] | bytes | None" = None) -> None:
        """Commit all blocks and the layout: an adopter gets these from now on.  None: keep the committed layout.

        Tensors of a Layout can be looked up by name.  A mapping is stored as JSON, bytes as they are, both at most 16 MiB.
        The contents are never copied: the adopter finds the last contents of the memory.  Raises LayoutError.
        """
        data = self._encoded(layout)
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_commit(handle, ffi.NULL if data is None else data, len(data or b"")))
            self._spans = None
            if data is not None:
                self._layout, self._tensors = data, None

    def _encoded(self, layout: "Layout | Mapping[str, Any] | bytes | None") -> bytes | None:
        if isinstance(layout, Layout):
            spans = self.spans()
            for name, spec in layout.tensors.items():
                _layout.place(name, self.base + spec.offset, spec.bytes, self.base, spans)
            return _layout.encode(layout)
        if layout is None or isinstance(layout, bytes):
            return layout
        if not isinstance(layout, Mapping):
            raise TypeError(f"a layout is a Layout, a mapping or bytes, and not {type(layout).__name__}")
        return _layout.encode_json(dict(layout))

    @property
    def layout(self) -> bytes | None:
        """The layout of the last commit by this process, or of the last one before open or refresh; None without one."""
        return self._layout

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """The tensors of the layout by name.  Raises LayoutError if the layout does not describe tensors."""
        return MappingProxyType(self._read().tensors)

    @property
    def extra(self) -> Any:
        """The value that the owner added to the layout."""
        return self._read().extra

    def _read(self) -> Layout:
        with self._lock:
            if self._tensors is None:
                if self._layout is None:
                    raise LayoutError(f"no layout was committed to arena {self.name}")
                self._tensors = _layout.decode(self._layout)
            return self._tensors

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor by name.  Raises KeyError; LayoutError if the layout is invalid."""
        spec = self._read().tensors[name]
        with self._lock:
            if self._spans is None:
                self._spans = self.spans()
            _layout.place(name, self.base + spec.offset, spec.bytes, self.base, self._spans)
        return Tensor(self, name, spec)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read().tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._read().tensors

    def view(
        self, address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, name: str = ""
    ) -> Tensor:
        """Return a tensor at an address in the arena's blocks, independent of the layout.  strides: in elements.  Raises
        LayoutError."""
        if dtype not in DATA_TYPES:
            raise LayoutError(f"no data type {dtype!r:.40} is known")
        steps = _layout.dense_strides(shape) if strides is None else tuple(strides)
        spec = TensorSpec(address - self.base, dtype, tuple(shape), steps)
        _layout.place(name or "without a name", address, spec.bytes, self.base, self.spans())
        return Tensor(self, name, spec)

    def free(self, block: Block | int) -> None:
        """Free a block as Window.free does; tensors in it can no longer be looked up by name."""
        self._spans = None
        super().free(block)

    def free_unused(self) -> int:
        """Free the adopted blocks without a tensor of the layout, as `free` does, and return their bytes.

        If the process ends before its next commit, the blocks exist again.  Do not use it with arenas without named tensors.
        """
        used = sorted((spec.offset, spec.offset + spec.bytes) for spec in self._read().tensors.values() if spec.bytes)
        unused = [
            block
            for block in self.blocks()
            if block.is_adopted and not any(first < block.offset + block.bytes and block.offset < end for first, end in used)
        ]
        for block in unused:
            self.free(block)
        return sum(block.bytes for block in unused)

    # -- a reader that follows, and may become the writer ------------------------------------------------------------

    def refresh(self) -> bool:
        """Map the last commit, and unmap freed memory.  Return whether anything has changed.

        Before it unmaps memory it waits for the GPU; this process must not use that memory afterwards.  Raises OSError (EBUSY:
        this process is the writer, and has uncommitted changes).
        """
        with self._working() as handle:
            self._require_no_rehearsal()
            changed = self._session.check(lib.mpsd_arena_refresh(handle))
            if changed:
                self._layout, self._tensors, self._spans = self._fetch_layout(), None, None
            return changed > 0

    def _set_writable(self, is_writable: bool) -> bool:
        """Map the memory of a reader that may be promoted (Service) writable or read-only, and return how it was.  While the
        driver handles a fault, this change takes 20 to 280 ms (H200); so a standby makes it in advance."""
        with self._working() as handle:
            return bool(self._session.check(lib.mpsd_arena_set_writable(handle, is_writable)))

    @contextmanager
    def _rehearsal(self, writes: Iterable[str] | None) -> Iterator[None]:
        """Map private copies of the memory in place of the arena's inside the `with` block: all of it, or the blocks with the
        tensors `writes`.  The rest is mapped read-only meanwhile.

        Raises LayoutError for an unknown tensor; MemoryError without room for the copies; CudaError, after which some of the
        arena may not be mapped."""
        with self._working():
            self._require_no_rehearsal()
            blocks = self.blocks() if writes is None else self._blocks_of(writes)
            was_writable = self._set_writable(False)
            try:
                _cuda.call("cuCtxSynchronize")
                copies = copy_blocks(self.device, blocks)
            except BaseException:
                if was_writable:
                    self._set_writable(True)
                raise
            self._is_rehearsing, self._copied = True, blocks
        try:
            yield
        finally:
            with self._working():
                try:
                    _cuda.call("cuCtxSynchronize")
                finally:
                    self._is_rehearsing, self._copied = False, ()
                    restore(self.device, copies)
                    if was_writable:
                        self._set_writable(True)

    def _blocks_of(self, names: Iterable[str]) -> list[Block]:
        """Return the blocks with these tensors: NAME itself, or NAME.anything."""
        tensors, spans = self._read().tensors, []
        for name in names:
            found = [spec for each, spec in tensors.items() if each == name or each.startswith(f"{name}.")]
            if not found:
                raise LayoutError(f"arena {self.name} has no tensor {name}, nor {name}.*")
            spans += [(spec.offset, spec.offset + spec.bytes) for spec in found]
        return [
            block
            for block in self.blocks()
            if any(first < block.offset + block.bytes and block.offset < end for first, end in spans)
        ]

    def _promoted(self, generation: int) -> None:
        """Become the writer of this generation, after mpsd's promotion (Service)."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_promoted(handle, generation))
            self.is_writable = True

    def _set_state(self, state: State) -> None:
        """Set the state of this writer's term; after a death of mpsd's keeper `_restore` gives mpsd both state and memory, or
        neither."""
        with self._lock:
            self._session.check(lib.mpsd_arena_set_state(self._open_handle(), state.fd))

    def _restore(self) -> tuple[int, int]:
        """Give mpsd the committed memory and the state again if its keeper has died.  Return the writer's new generation and
        the serial of the state; 0: nothing was lost since `_promoted`.

        Raises OSError (EBUSY: memory of the last commit was freed since: the restore has to wait for the next commit)."""
        serial = ffi.new("uint64_t *")
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_restore(handle, serial))
            return int(lib.mpsd_arena_generation(handle)), int(serial[0])

    def _yielded(self) -> None:
        """Make the memory read-only; the caller then reports the yield.  Raises OSError (EBUSY: uncommitted changes)."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_yielded(handle))
            self.is_writable = False

    def keep_state(self, state: State) -> int:
        """Give mpsd the writer's forward state, which then outlives this process, and return its serial.

        Call it once per generation: later records are published through shared memory.  After the death of mpsd's keeper the
        state is restored with the memory.  Raises Refused (STALE_GENERATION, BAD_REQUEST: the state has another generation)."""
        with self._lock:
            self._open_handle()
            params = {"id": self.id, "generation": self.generation}
            found, _ = self._session.ask("arena.keep_state", params, (state.fd,))
            self._set_state(state)
            return int(found["state_serial"])

    def fetch_state(self) -> tuple[int, int, int] | None:
        """Return the state that mpsd keeps: a descriptor for StateReader, which the caller has to close, the generation of its
        writer, and its serial; None if mpsd keeps no state."""
        with self._lock:
            self._open_handle()
            found, fds = self._session.ask("arena.state", {"id": self.id})
        return (fds[0], int(found["generation"]), int(found["state_serial"])) if fds else None

    def image(self, name: str = "", directory: Path = None, others: "Iterable[Arena]" = (), group: str = "",
              epoch: "Epoch | None" = None, *, parity: int = 0) -> "Taking":  # fmt: skip
        """Begin an image: another process copies the arena while this one goes on.  Taking.barrier sets the image's moment.

        name: "": the arena's with the time, or the epoch's.  directory: of images; None: $MPSD_IMAGES, else as docs/images.md.
        others, group: more arenas, and the name of all.  parity: store only that of all, for as many lost GPUs: 1 or 2.
        This waits for an image after its barrier.  Raises ImageError."""
        from mpsd_client._image import begin

        self._taking = begin([self, *others], self._taking, name, directory, group, epoch, parity)
        return self._taking

    def pool(self) -> AbstractContextManager[None]:
        """Place PyTorch's allocations of this thread in the arena, inside a `with` block: mpsd_client.torch.pool."""
        from mpsd_client import torch

        return torch.pool(self)

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the arena.  During an exception, whose frames may hold tensors, ignore BufferError and leave it open."""
        try:
            self.close()
        except BufferError:
            if error is None:
                raise

    def _fetch_layout(self) -> bytes | None:
        """Return the layout of the mapped commit, without a request to mpsd."""
        out, count = ffi.new("void **"), ffi.new("size_t *")
        self._session.check(lib.mpsd_arena_layout(self._open_handle(), out, count))
        if out[0] == ffi.NULL:
            return None
        try:
            return bytes(ffi.buffer(out[0], count[0]))
        finally:
            lib.free(out[0])


def _open_handle(session: Session, entrance: Entrance, name: str, access: int, wait: float, out: Any) -> None:
    """Open the arena; wait in slices, so that Ctrl-C works between them."""
    driver = ffi.new("struct mpsd_driver *")
    session.check(lib.mpsd_driver_load(driver, ffi.NULL, ffi.NULL))
    deadline = time.monotonic() + wait
    while True:
        left = max(0.0, deadline - time.monotonic())
        done = lib.mpsd_arena_open_on(
            session.handle, driver, name.encode(), access, min(left, SLICE_SECONDS), *entrance.call, out
        )
        if done != -errno.EBUSY or left <= SLICE_SECONDS:
            entrance.check()
            session.check(done)
            return


def adopt(name: str, wait: float = 0.0, *, path: Path = None) -> Arena:
    """Open an arena for writing with the tensors that an earlier process committed: `adopt(name)["x"]` is its memory.

    wait: as for `Arena.open`.  Raises LayoutError, and closes the arena, if no tensors were committed.
    """
    arena = Arena.open(name, wait, path=path)
    try:
        arena.tensors  # noqa: B018 - raises
    except BaseException:
        arena.close()
        raise
    return arena
