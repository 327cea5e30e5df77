"""PyTorch tensors in arenas: they outlive the process, and the next one finds them at the same addresses, without a copy.

    kept = keep("llm", build, capacity=8 << 30)      # builds at the first start; adopts the arena at every later one
    model = kept.state["model"]

    with pool(arena):                                # or by hand: allocations in this block are in the arena
        model, kv = Model().cuda(), torch.zeros(...)
    save(arena, {"model": model, "kv": kv})          # from here on an adopter gets these
    load_into(adopt("llm"), model)                   # in another process

Prose and limitations: mpsd's docs/python.md.  Needs torch 2.5 or newer, which mpsd-client does not depend on.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from mpsd_client import _cuda
from mpsd_client._arena import Arena, Path, adopt
from mpsd_client._errors import ErrorCode, Refused
from mpsd_client._filling import fill_if_empty
from mpsd_client._layout import LayoutError
from mpsd_client._restoring import restore_if_missing
from mpsd_client._schedule import ImageSchedule
from mpsd_client._torch_graph import capture, shrink_stacks
from mpsd_client._torch_load import load, load_into, tensor_of
from mpsd_client._torch_pool import pool
from mpsd_client._torch_rng import RNG_BYTES, rng_state, set_rng_state
from mpsd_client._torch_save import EXTRA, save

__all__ = [
    "RNG_BYTES",
    "Kept",
    "adopt",
    "capture",
    "keep",
    "load",
    "load_into",
    "pool",
    "rng_state",
    "save",
    "set_rng_state",
    "shrink_stacks",
]


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of `keep`.  state: as `build` made it, in the arena.  is_adopted: an earlier process built it.  extra: the
    JSON value saved with it.  images: their schedule, with `images_every`."""

    arena: Arena
    state: dict[str, Any]
    is_adopted: bool
    extra: Any = None
    images: ImageSchedule | None = None

    def step_done(self) -> None:
        """Call it between two steps: with `images_every`, it may be the moment of an image."""
        if self.images:
            self.images.step_done(self.arena)


def keep(
    name: str,
    build: Callable[[], Mapping[str, Any]],
    *,
    capacity: int,
    skeleton: Callable[[], Mapping[str, Any]] | None = None,
    wait: float = 60.0,
    mode: int = 0o600,
    ttl: float = 0.0,
    path: Path = None,
    images_every: float | None = None,
    directory: Path = None,
) -> Kept:
    """Return the result of `build` in the arena `name` on the current GPU: built at the first start, adopted later.

    build: makes modules and tensors on the default device, which is the arena's GPU, in the arena's pool; returns them in the
    form that `save` takes.  skeleton: makes the same without contents, for adopting; None: `build` on the meta device, where
    modules and tensors need no memory; give one if `build` names device="cuda" itself or reads files.  capacity: bytes, used at
    the first start.  wait: seconds to wait for the end of the previous process.  mode, ttl: as for Arena.create.

    images_every: seconds from one image of the arena to the next; Kept.step_done sets their moments.  The newest image is
    restored if the arena does not exist, or was emptied.  directory: of images, as for Arena.image.

    An arena without a commit, because its process died before, is built again.
    """
    images = None if images_every is None else ImageSchedule(images_every, directory)
    arena = _open_or_create(name, capacity, wait, mode, ttl, path, images)
    try:
        if images:
            fill_if_empty(arena, path, images.directory, ttl)
        if arena.layout is None:
            return replace(_build(arena, build), images=images)
        return replace(_adopt(arena, skeleton or build), images=images)
    except BaseException:
        with suppress(BufferError):  # the traceback may hold tensors; the end of the process then closes the arena
            arena.close()
        raise


def _open_or_create(
    name: str, capacity: int, wait: float, mode: int, ttl: float, path: Path, images: ImageSchedule | None
) -> Arena:
    torch.cuda.init()
    gpu = _cuda.uuid_of(torch.cuda.current_device())
    if images:
        restore_if_missing(name, gpu, path, images.directory, mode=mode, ttl=ttl)
    try:
        return Arena.open(name, wait, path=path)
    except Refused as exc:
        if exc.code != ErrorCode.NO_SUCH_ARENA:
            raise
    try:
        return Arena.create(name, capacity, gpu, mode=mode, ttl=ttl, path=path)
    except FileExistsError:  # another process has created it in between
        return Arena.open(name, wait, path=path)


def _build(arena: Arena, build: Callable[[], Mapping[str, Any]]) -> Kept:
    with torch.cuda.device(arena.device), torch.device("cuda", arena.device), pool(arena):
        state = dict(build())
    save(arena, state)
    extra = state.pop(EXTRA, None)
    return Kept(arena, state, False, extra)


def _adopt(arena: Arena, skeleton: Callable[[], Mapping[str, Any]]) -> Kept:
    with torch.device("meta"):
        state = dict(skeleton())
    state.pop(EXTRA, None)
    return Kept(arena, {key: _filled(arena, key, value) for key, value in state.items()}, True, arena.extra)


def _filled(arena: Arena, name: str, value: Any) -> Any:
    """Return the value with the arena's tensors in place of its own."""
    if isinstance(value, torch.nn.Module):
        load_into(arena, value, name)
        return value
    if isinstance(value, torch.Tensor):
        if name not in arena:
            raise LayoutError(f"arena {arena.name} has no tensor {name}")
        return tensor_of(arena, name)
    if isinstance(value, Mapping):
        return {key: _filled(arena, f"{name}.{key}", each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        made = [_filled(arena, f"{name}.{number}", each) for number, each in enumerate(value)]
        return made if isinstance(value, list) else tuple(made)
    raise LayoutError(f"{name}: neither a tensor nor something that holds tensors, but {type(value).__name__}")
