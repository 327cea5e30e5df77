"""Make PyTorch tensors from the layout of an arena, alone or inside a module."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from mpsd_client._arena import Arena
from mpsd_client._layout import LayoutError


def load(arena: Arena) -> dict[str, Any]:
    """Return the committed tensors by name, as torch.Tensor on the arena's GPU, without a copy.

    Do not write to tensors of an arena opened with `read`: PyTorch does not support read-only memory, but the GPU enforces it.
    """
    return {name: tensor_of(arena, name) for name in arena}


def tensor_of(arena: Arena, name: str) -> Any:
    found = arena[name]
    kind = getattr(torch, found.dtype)
    if not found.nbytes:
        return torch.empty_strided(found.shape, found.strides, dtype=kind, device=torch.device("cuda", arena.device))
    if not found.dtype.startswith("float8") and not found.dtype.startswith("float4"):
        return torch.from_dlpack(found)
    # These types have one byte per element, and some versions of PyTorch lack them in DLPack.
    found.spec = replace(found.spec, dtype="uint8")
    return torch.from_dlpack(found).view(kind)


def load_into(arena: Arena, module: Any, prefix: str = "model") -> None:
    """Replace the module's parameters and buffers by views of the arena's tensors PREFIX.NAME, without a copy.

    A module built on the meta device, without memory of its own, is then complete.  Shared parameters stay shared, and
    requires_grad is kept.  The Parameter objects are new: create optimizers afterwards.  A non-persistent buffer that the arena
    lacks stays as it is, unless it is on the meta device.

    Raises LayoutError, and changes nothing, if names are missing on either side, or shapes or types differ.
    """
    begin = f"{prefix}." if prefix else ""
    there = {name.removeprefix(begin): name for name in arena if name.startswith(begin)}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    for path in _dispensable(module):
        if path not in there and not buffers[path].is_meta:
            del buffers[path]
    _require_same(arena, begin, there, parameters | buffers)
    made: dict[int, Any] = {}
    for path, old in (parameters | buffers).items():
        if id(old) not in made:
            made[id(old)] = _stand_in(old, tensor_of(arena, there[path]))
        owner, _, leaf = path.rpartition(".")
        setattr(module.get_submodule(owner), leaf, made[id(old)])


def _dispensable(module: Any) -> list[str]:
    """Return the names of the module's non-persistent buffers."""
    return [
        f"{path}.{leaf}" if path else leaf
        for path, each in module.named_modules(remove_duplicate=False)
        for leaf in each._non_persistent_buffers_set
        if each._buffers.get(leaf) is not None
    ]


def _require_same(arena: Arena, begin: str, there: Mapping[str, str], wanted: Mapping[str, Any]) -> None:
    missing, unknown = sorted(wanted.keys() - there.keys()), sorted(there.keys() - wanted.keys())
    if missing or unknown:
        raise LayoutError(
            f"arena {arena.name}, {begin or 'tensors'}: the module has no {_some(unknown)}, the arena has no {_some(missing)}"
        )
    specs = arena.tensors
    for path, old in wanted.items():
        spec = specs[there[path]]
        if (spec.dtype, spec.shape) != (str(old.dtype).removeprefix("torch."), tuple(old.shape)):
            raise LayoutError(
                f"tensor {there[path]} is {spec.dtype}{list(spec.shape)}, the module has {old.dtype}{list(old.shape)}"
            )


def _some(names: list[str]) -> str:
    return (", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")) or "more"


def _stand_in(old: Any, view: Any) -> Any:
    if not isinstance(old, torch.nn.Parameter):
        return view
    made = torch.nn.Parameter(view, requires_grad=old.requires_grad)
    made.__dict__.update(old.__dict__)
    return made
