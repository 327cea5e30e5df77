"""Arenas: named GPU memory that outlives this process, at addresses that are the same in every process.

    with Arena.create("kv", 8 << 30) as arena:
        block = arena.allocate(1 << 30)
        arena.commit(Layout({"kv": TensorSpec(block.offset, "bfloat16", (4, 1 << 27), (1 << 27, 1))}))

    adopt("kv")["kv"]  # in another process, after this one

Prose: mpsd's docs/python.md, and docs/vault.md for what is kept and when.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Any

from mpsd_client import _layout
from mpsd_client._entrance import Entrance
from mpsd_client._layout import DATA_TYPES, Layout, LayoutError, Spans, TensorSpec
from mpsd_client._native import ffi, lib
from mpsd_client._session import Session
from mpsd_client._state import State
from mpsd_client._tensor import Tensor
from mpsd_client._window import Block, Window

Path = str | os.PathLike[str] | None
SLICE_SECONDS = 1.0  # of a wait in C, which hears no Ctrl-C


class Arena(Window):
    """An arena that this process has open: by `create`, `open`, `adopt` or `read`.  A mapping of its tensors.

    Raises, besides what Window does: OSError (EADDRINUSE: something lies where the window belongs), LookupError (its GPU is not
    visible to CUDA here), LayoutError.
    """

    def __init__(self, session: Session, handle: Any, name: str, is_writable: bool) -> None:
        """Not to be called: see the class methods."""
        super().__init__(session, handle, name, is_writable)
        self._layout = self._fetch_layout()
        self._tensors: Layout | None = None
        self._spans: Spans | None = None  # when the layout was first looked at

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
        """A new arena, opened for writing.

        name: 1 to 128 of A-Z a-z 0-9 . _ -.  capacity: bytes that it may hold at most.  gpu: as mpsd counts (`mpsctl devices`),
        or a UUID.  window: bytes of addresses; 0: mpsd chooses.  mode: as of a file: who may read adopts, who may write writes.
        ttl: seconds that it stays with nobody holding it; 0: until it is removed.  path: mpsd's socket.
        Raises FileExistsError: there is one of this name.
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
        """To write: what was committed last is mapped, at the addresses it had.

        wait: seconds, at most 3600, for a writer that is there, or whose GPU work has not ended yet; then Refused, ARENA_BUSY.
        Asked for anew each second, so that Ctrl-C is heard: who waits in C comes before.
        """
        return cls._begin(name, True, wait, path)

    @classmethod
    def read(cls, name: str, *, path: Path = None) -> "Arena":
        """To read, beside a writer or alone.  Read-only is a promise of this library: CUDA has no read-only exports."""
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
        """From now on this is what an adopter gets: all blocks there are, and the layout; None: the layout stays as it was.

        A Layout of tensors can be used by their names.  A mapping is kept as JSON, bytes as they are, both at most 16 MiB.
        The contents are never copied: the adopter finds what was in memory last.  Raises LayoutError.
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
        """As it was committed last, by this process, or before it was opened or refreshed; None where nothing was."""
        return self._layout

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Of the layout, by name.  Raises LayoutError: the layout does not speak of tensors."""
        return MappingProxyType(self._read().tensors)

    @property
    def extra(self) -> Any:
        """What the owner added to the layout."""
        return self._read().extra

    def _read(self) -> Layout:
        with self._lock:
            if self._tensors is None:
                if self._layout is None:
                    raise LayoutError(f"no layout was committed to arena {self.name}")
                self._tensors = _layout.decode(self._layout)
            return self._tensors

    def __getitem__(self, name: str) -> Tensor:
        """Raises KeyError; LayoutError: what the layout says cannot be."""
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
        """Elements at an address in blocks of the arena, whatever the layout says.  strides: in elements.  Or LayoutError."""
        if dtype not in DATA_TYPES:
            raise LayoutError(f"no data type {dtype!r:.40} is known")
        steps = _layout.dense_strides(shape) if strides is None else tuple(strides)
        spec = TensorSpec(address - self.base, dtype, tuple(shape), steps)
        _layout.place(name or "without a name", address, spec.bytes, self.base, self.spans())
        return Tensor(self, name, spec)

    def free(self, block: Block | int) -> None:
        """As Window.free; a tensor in it cannot be looked up by name any more."""
        self._spans = None
        super().free(block)

    def free_unused(self) -> int:
        """Frees what earlier processes left in which no tensor of the layout lies, as `free` does; how many bytes that were.

        The memory comes back where the process ends before its next commit.  Not for arenas that are used without names.
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
        """What was committed since is mapped, and what is gone is not any more; whether anything has changed.

        Waits for the GPU where memory goes: nothing of ours may use that later.  Raises OSError (EBUSY: this is the writer, and
        something is not committed).
        """
        with self._working() as handle:
            changed = self._session.check(lib.mpsd_arena_refresh(handle))
            if changed:
                self._layout, self._tensors, self._spans = self._fetch_layout(), None, None
            return changed > 0

    def _set_writable(self, is_writable: bool) -> bool:
        """Of a reader that may be promoted (Service): whether the GPU lets it write already; how it was.  While the driver
        clears up after a fault, to change that takes 20 to 280 ms (H200); so it is changed before."""
        with self._working() as handle:
            return bool(self._session.check(lib.mpsd_arena_set_writable(handle, is_writable)))

    def _promoted(self, generation: int) -> None:
        """mpsd has made this process the writer of this generation (Service): what is mapped can be written."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_promoted(handle, generation))
            self.is_writable = True

    def _set_state(self, state: State) -> None:
        """That of this writer's term: where mpsd's keeper dies, it is given again with the memory, both or neither."""
        with self._lock:
            self._session.check(lib.mpsd_arena_set_state(self._open_handle(), state.fd))

    def _restore(self) -> tuple[int, int]:
        """mpsd has what was committed, and the state, again where its keeper has died.  The generation that this writer has
        then, and the state's serial; 0: it was not lost since `_promoted`.

        Raises OSError (EBUSY: what was freed since the last commit is missing from it: it waits for the next one)."""
        serial = ffi.new("uint64_t *")
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_restore(handle, serial))
            return int(lib.mpsd_arena_generation(handle)), int(serial[0])

    def _yielded(self) -> None:
        """Nothing of this process writes any more; mpsd is to be told.  Raises OSError (EBUSY: something is not committed)."""
        with self._working() as handle:
            self._session.check(lib.mpsd_arena_yielded(handle))
            self.is_writable = False

    def keep_state(self, state: State) -> int:
        """The writer's forward state is with the arena from now on, and outlives this process; its serial.

        Once for each generation: what is published later is in shared memory.  Where mpsd's keeper dies it is given again, with
        the memory.  Raises Refused (STALE_GENERATION, BAD_REQUEST: the state is of another generation)."""
        with self._lock:
            self._open_handle()
            params = {"id": self.id, "generation": self.generation}
            found, _ = self._session.ask("arena.keep_state", params, (state.fd,))
            self._set_state(state)
            return int(found["state_serial"])

    def fetch_state(self) -> tuple[int, int, int] | None:
        """What is kept: a descriptor for StateReader, which is the caller's to close, its writer's generation, its serial."""
        with self._lock:
            self._open_handle()
            found, fds = self._session.ask("arena.state", {"id": self.id})
        return (fds[0], int(found["generation"]), int(found["state_serial"])) if fds else None

    def pool(self) -> AbstractContextManager[None]:
        """What PyTorch allocates within, in this thread, lies in the arena: mpsd_client.torch.pool."""
        from mpsd_client import torch

        return torch.pool(self)

    def __enter__(self) -> "Arena":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it; beside an exception in flight, whose frames may hold tensors, it stays open rather than hide that."""
        try:
            self.close()
        except BufferError:
            if error is None:
                raise

    def _fetch_layout(self) -> bytes | None:
        """Of what is mapped; mpsd is not asked."""
        out, count = ffi.new("void **"), ffi.new("size_t *")
        self._session.check(lib.mpsd_arena_layout(self._open_handle(), out, count))
        if out[0] == ffi.NULL:
            return None
        try:
            return bytes(ffi.buffer(out[0], count[0]))
        finally:
            lib.free(out[0])


def _open_handle(session: Session, entrance: Entrance, name: str, access: int, wait: float, out: Any) -> None:
    """Waits in slices, so that Ctrl-C is heard between them."""
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
    """An arena with tensors that an earlier process committed, opened for writing: `adopt(name)["x"]` is its memory.

    wait: as for `Arena.open`.  Raises LayoutError: none were committed; then it is closed again.
    """
    arena = Arena.open(name, wait, path=path)
    try:
        arena.tensors  # noqa: B018 - raises
    except BaseException:
        arena.close()
        raise
    return arena
