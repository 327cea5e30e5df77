"""The tensors of a model that vLLM has loaded and processed, apart from the model: what is kept of them, and how a model on the
meta device gets them.  Knows nothing of vLLM."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mpsd_client._layout import LayoutError


def describe(model: Any) -> dict[str, list[str]]:
    """What the tensors alone do not say.  buffers: which are no parameters; host: which are in host memory."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    everything = dict(model.named_parameters(remove_duplicate=False)) | buffers
    return {"buffers": sorted(buffers), "host": sorted(name for name, each in everything.items() if each.is_cpu)}


def give(model: Any, tensors: Mapping[str, Any], about: Mapping[str, list[str]]) -> None:
    """The model's parameters are these tensors, its buffers copies of them, since some are written to while it runs.

    What the model does not have yet is added (processing makes such), what shares memory stays one parameter.  Raises
    LayoutError, and has changed nothing: a tensor belongs to a module that is not there.
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
        where = tensor.data_ptr() or name  # an empty one has no address
        same = (where, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if same not in made:
            made[same] = nn.Parameter(kept, requires_grad=False)
        module.register_parameter(leaf, made[same])


def fill_meta(model: Any, device: Any) -> None:
    """What still has no memory gets some, without contents: placeholders that processing has used up, which nobody reads."""
    for module in model.modules():
        for leaf, each in list(module._parameters.items()):
            if each is not None and each.is_meta:
                module._parameters[leaf] = nn.Parameter(torch.empty_like(each, device=device), requires_grad=False)
        for leaf, each in list(module._buffers.items()):
            if each is not None and each.is_meta:
                module._buffers[leaf] = torch.empty_like(each, device=device)
