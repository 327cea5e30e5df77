"""An arena that is used while an image is restored to it.  Prose: mpsd's docs/images.md, "Restoring while in use"."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mpsd_client import _calls as calls
from mpsd_client._arena import Arena, Path
from mpsd_client._client import Client
from mpsd_client._errors import MpsdError
from mpsd_client._imager import ImageError, ImagerProcess
from mpsd_client._layout import Layout, LayoutError, TensorSpec
from mpsd_client._restoring import FILL_SECONDS, KILLED_TTL, BlockNumbers, ImageSource

LOOK_SECONDS = 0.002  # between two looks at what is there


class RestoredArena(Arena):
    """The writer's arena, made by `restore_arena`.  Its tensors are there one after the other; it is committed when all are.

    If this process ends before that, mpsd drops the arena after a minute; the image stays."""

    _source: ImageSource | None = None
    _trouble = ""  # why it cannot be complete
    _is_filled = False
    _state: Any = None  # of this writer
    _ttl = 0.0
    _socket: Path = None

    def ready(self, *names: str, timeout: float = FILL_SECONDS) -> None:
        """Wait until these tensors are in the GPU's memory: NAME itself, or NAME.anything.  Without names, until all bytes are,
        and commit them.

        Raises ImageError (a block is damaged: close the arena, it will not be complete), LayoutError (no such tensor),
        TimeoutError."""
        source = self._source
        if source is None:
            return
        wanted = blocks_of(self.tensors, names, source.numbers) if names else range(source.blocks)

        def are_there() -> bool:
            return all(map(os.pread(source.done, source.blocks, 0).__getitem__, wanted))

        end = time.monotonic() + timeout
        while not are_there():
            if time.monotonic() > end:
                what = " ".join(names) or "the image"
                raise TimeoutError(f"arena {self.name}: {what} was not there within {timeout:g} seconds")
            if self._trouble or (source.imager.waits_for_answer(LOOK_SECONDS) and not are_there()):
                names = ()  # it has failed
                break
        if not names:
            with self._lock:
                self._complete(source)

    def _complete(self, source: ImageSource) -> None:
        """Commit what the imager has filled."""
        if self._source is None:  # another thread has done it
            return
        if self._trouble:
            raise ImageError(self._trouble)
        if not self._is_filled:
            try:
                source.imager.answer("filled", FILL_SECONDS)
            except ImageError as exc:
                self._trouble = str(exc)
                raise
            self._is_filled = True
        self._state = source.state(self.generation)
        if self._state:
            self.keep_state(self._state)
        super().commit(self._layout)
        with Client(self._socket, program="mpsd_client") as mpsd:
            mpsd.ask(calls.arena_change(self.id, ttl_seconds=self._ttl))
        self._source = None
        source.close()

    def commit(self, layout: "Layout | Mapping[str, Any] | bytes | None" = None) -> None:
        """Wait for all bytes, and commit as Arena.commit does."""
        self.ready()
        super().commit(layout)

    def close(self) -> None:
        """Close the arena as Arena.close does; it is gone unless `ready()` has returned."""
        super().close()
        source, self._source = self._source, None
        if source is None or self._pid != os.getpid():
            return
        source.close()
        with suppress(MpsdError, OSError), Client(self._socket, program="mpsd_client") as mpsd:
            mpsd.ask(calls.arena_remove(self.name))


def restore_arena(
    image: str, name: str = "", order: Sequence[str] = (), *, arena: str = "", gpu: str = "", mode: int = 0o600,
    ttl: float = 0.0, directory: Path = None, path: Path = None, imager: ImagerProcess | None = None,
) -> RestoredArena:  # fmt: skip
    """Open an arena of an image for writing at once, while its bytes still come: `ready` waits for those that are needed.

    order: names of tensors, as for `ready`; their blocks come first, in this order, and then all others.  imager: one that
    `start_imager` has started earlier, which belongs to the arena now.  The rest: as for restore_image and Arena.create.
    Raises as both do.
    """
    source = ImageSource(image, arena, directory, gpu, imager)
    try:
        called, on, capacity, window = source.wanted(name, gpu)
        made = RestoredArena.create(called, capacity, on, window=window, mode=mode, ttl=KILLED_TTL, path=path)
        assert isinstance(made, RestoredArena)
        made._source, made._ttl, made._socket = source, ttl, path
        try:
            _begin(made, source, order)
        except BaseException:
            made.close()
            raise
        return made
    except BaseException:
        source.close()
        raise


def _begin(made: RestoredArena, source: ImageSource, order: Sequence[str]) -> None:
    """Let the imager fill the memory, and map it.  It is committed without a layout: so nobody takes it for complete."""
    layout = None if source.layout is None else os.pread(source.layout, os.fstat(source.layout).st_size, 0)
    made._layout = layout
    source.fill(fill_order(made.tensors, order, source.numbers) if order else range(source.blocks))
    with Client(made._socket, program="mpsd_client") as mpsd:  # the imager copies from the first memory on
        source.put(mpsd, made.id, made.generation, made.gpu)
        mpsd.ask(calls.arena_commit(made.id, made.generation))
    made.refresh()
    made._layout = layout  # the arena's own is empty until all bytes are there


def blocks_of(tensors: Mapping[str, TensorSpec], names: Iterable[str], numbers: BlockNumbers) -> list[int]:
    """Return the numbers of the blocks with these tensors, in the order of the names.  Raises LayoutError."""
    found: list[int] = []
    for name in names:
        specs = [spec for each, spec in tensors.items() if each == name or each.startswith(f"{name}.")]
        if not specs:
            raise LayoutError(f"the image has no tensor {name}, nor {name}.*")
        for spec in specs:
            if spec.bytes:
                found += numbers.within(spec.offset, spec.bytes)
    return found


def fill_order(tensors: Mapping[str, TensorSpec], names: Iterable[str], numbers: BlockNumbers) -> list[int]:
    """Return the numbers of all blocks once, those with these tensors first.  Raises LayoutError."""
    return list(dict.fromkeys([*blocks_of(tensors, names, numbers), *range(numbers.count)]))
