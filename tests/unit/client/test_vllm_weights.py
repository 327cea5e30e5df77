"""A model on the meta device gets the tensors of one that was loaded: mpsd_client._vllm_weights, which needs no vLLM."""

import importlib
from typing import Any

import pytest
from mpsd_client import LayoutError

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
weights = importlib.import_module("mpsd_client._vllm_weights")


def model(device: str) -> Any:
    with torch.device(device):
        made = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(10, 4), "head": torch.nn.Linear(4, 10, bias=False)})
        made["norm"] = torch.nn.BatchNorm1d(4)
    made["head"].weight = made["embedding"].weight
    return made


def tensors(of: Any) -> dict[str, Any]:
    return dict(of.named_parameters(remove_duplicate=False)) | dict(of.named_buffers(remove_duplicate=False))


def test_parameters_are_the_same_memory_and_buffers_are_not() -> None:
    loaded, mapped = model("cpu"), model("meta")
    kept = {name: each.detach() for name, each in tensors(loaded).items()}
    weights.give(mapped, kept, weights.describe(loaded))
    found = tensors(mapped)
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    assert found["norm.weight"].data_ptr() == kept["norm.weight"].data_ptr()
    assert found["norm.running_var"].data_ptr() != kept["norm.running_var"].data_ptr()
    assert mapped["head"].weight is mapped["embedding"].weight
    assert not any(each.requires_grad for each in mapped.parameters())


def test_what_processing_has_made_is_added_and_what_it_has_used_up_gets_memory() -> None:
    loaded, mapped = model("cpu"), model("meta")
    loaded["norm"].register_buffer("scale", torch.ones(1))
    del loaded["norm"].bias
    weights.give(mapped, {name: each.detach() for name, each in tensors(loaded).items()}, weights.describe(loaded))
    assert float(mapped["norm"].scale) == 1.0
    assert mapped["norm"].bias.is_meta
    weights.fill_meta(mapped, "cpu")
    assert not any(each.is_meta for each in tensors(mapped).values())


def test_a_tensor_without_a_module_is_refused_and_nothing_is_changed() -> None:
    mapped = model("meta")
    with pytest.raises(LayoutError, match=r"no place for layers\.0\.weight"):
        weights.give(mapped, {"norm.weight": torch.ones(4), "layers.0.weight": torch.ones(1)}, {"buffers": [], "host": []})
    assert mapped["norm"].weight.is_meta
