"""Commit PyTorch tensors as the layout of an arena."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mpsd_client._arena import Arena
from mpsd_client._layout import DATA_TYPES, Layout, LayoutError, Spans, TensorSpec, place
from mpsd_client._naming import flatten
from mpsd_client._torch_pool import Pinned, attached, pool

EXTRA = "extra"  # the value of this key is stored as JSON


def save(arena: Arena, state: Mapping[str, Any], *, copy: bool = False) -> None:
    """Commit these tensors under these names.  An adopter gets them with the contents that they have when this process ends.

    state: tensors, modules, and mappings, lists or tuples of them; names are joined by dots: {"model": module, "kv": [k, v]}
    is model.layers.0.weight, ..., kv.0, kv.1.  A module contributes its parameters and all its buffers, also non-persistent
    ones.  The value of the key "extra" is stored as JSON.  The call waits for the GPU first.

    Nothing is copied: a tensor outside the arena raises LayoutError with its name, unless copy=True, which puts a copy into the
    arena; later changes of the caller's tensor do not reach the copy.  Tensors that are not named are not saved; the memory of
    named ones stays allocated until the next save.
    """
    named = dict(state)
    extra = named.pop(EXTRA, None)
    tensors = flatten(named, lambda value: isinstance(value, torch.Tensor), _of_module)
    torch.cuda.synchronize(arena.device)
    spans, copies = arena.spans(), _Copies(arena)
    for name, tensor in tensors.items():
        _require_plain(name, tensor)
        if copy and not _is_inside(arena, tensor, spans):
            tensors[name] = copies.of(tensor)
    if copies.made:
        torch.cuda.synchronize(arena.device)
        spans = arena.spans()
    arena.commit(Layout({name: _spec(name, tensor, arena, spans) for name, tensor in tensors.items()}, extra))
    attached(arena).pinned = [Pinned.tensor(tensor) for tensor in tensors.values()]


def _of_module(value: Any) -> Mapping[str, Any] | None:
    if not isinstance(value, torch.nn.Module):
        return None
    return dict(value.named_parameters(remove_duplicate=False)) | dict(value.named_buffers(remove_duplicate=False))


def _require_plain(name: str, tensor: Any) -> None:
    """Raise LayoutError unless the tensor is plain numbers at an address, of a type that a layout supports."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_meta:
        raise LayoutError(f"tensor {name} is on the meta device: it has no contents")
    if tensor.layout is not torch.strided or tensor.is_quantized or kind not in DATA_TYPES:
        raise LayoutError(f"tensor {name}: a layout has no word for {tensor.layout}, {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        raise LayoutError(f"tensor {name} is a view that computes: resolve_conj() and resolve_neg() first")


def _is_inside(arena: Arena, tensor: Any, spans: Spans) -> bool:
    try:
        _spec("", tensor, arena, spans)
    except LayoutError:
        return False
    return True


def _spec(name: str, tensor: Any, arena: Arena, spans: Spans) -> TensorSpec:
    """Return the tensor's place in the window.  Raises LayoutError if it is not in the arena's memory."""
    spec = TensorSpec(0, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))
    return replace(spec, offset=place(name, tensor.data_ptr(), spec.bytes, arena.base, spans))


class _Copies:
    """Copies tensors into the arena; tensors that share memory are copied once, and share it there as well."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.made: dict[tuple[Any, ...], Any] = {}

    def of(self, tensor: Any) -> Any:
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if key not in self.made:
            with pool(self._arena), torch.no_grad():
                self.made[key] = tensor.detach().to(torch.device("cuda", self._arena.device), copy=True)
        return self.made[key]
