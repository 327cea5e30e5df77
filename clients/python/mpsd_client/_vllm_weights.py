"""Describe the tensors of a model that vLLM has loaded and processed, and give them to a model on the meta device.  This module
does not import vLLM."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mpsd_client._layout import LayoutError


def describe(model: Any) -> dict[str, list[str]]:
    """Return the facts that the tensors lack.  buffers: names of those that are not parameters; host: names of those in host
    memory."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    everything = dict(model.named_parameters(remove_duplicate=False)) | buffers
    return {"buffers": sorted(buffers), "host": sorted(name for name, each in everything.items() if each.is_cpu)}


def give(model: Any, tensors: Mapping[str, Any], about: Mapping[str, list[str]]) -> None:
    """Make these tensors the model's parameters, and copies of them its buffers, since the running model writes some buffers.

    Names that the model lacks are added (processing creates such tensors); tensors that share memory stay one parameter.
    Raises LayoutError, and changes nothing, if a tensor's module does not exist in the model.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if unknown := sorted(name for name in tensors if name.rpartition(".")[0] not in modules):
        raise LayoutError(f"the model has no place for {', '.join(unknown[:5])}{' and more' if len(unknown) > 5 else ''}")
    buffers, host = set(about["buffers"]), set(about["host"])
    made: dict[tuple[Any, ...], Any] = {}
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        module = modules[path]
        module._parameters.pop(leaf, None)
        module._buffers.pop(leaf, None)
        kept = tensor.cpu() if name in host else tensor
        if name in buffers:
            module.register_buffer(leaf, kept.clone())
            continue
        where = tensor.data_ptr() or name  # an empty tensor has no address
        same = (where, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if same not in made:
            made[same] = nn.Parameter(kept, requires_grad=False)
        module.register_parameter(leaf, made[same])


def fill_meta(model: Any, device: Any) -> None:
    """Allocate uninitialized memory for the remaining meta tensors: placeholders that processing has consumed and that the
    model does not read."""
    for module in model.modules():
        for leaf, each in list(module._parameters.items()):
            if each is not None and each.is_meta:
                module._parameters[leaf] = nn.Parameter(torch.empty_like(each, device=device), requires_grad=False)
        for leaf, each in list(module._buffers.items()):
            if each is not None and each.is_meta:
                module._buffers[leaf] = torch.empty_like(each, device=device)
