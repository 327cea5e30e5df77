"""What of mpsd_client.torch needs PyTorch but no GPU; the rest is tried on one (tests/gpu/torch)."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
parts = importlib.import_module("mpsd_client.torch")


@pytest.mark.parametrize("of", ["cpu", torch.Generator()])
def test_a_generator_goes_on_where_it_was(of: Any) -> None:
    generator = torch.default_generator if of == "cpu" else of
    state = parts.rng_state(of)
    first = torch.rand(5, generator=generator)
    parts.set_rng_state(state, of)
    assert torch.equal(torch.rand(5, generator=generator), first)


def test_the_state_of_another_kind_of_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu has 5056 bytes, not 16"):
        parts.set_rng_state(bytes(parts.RNG_BYTES), "cpu")


def test_a_reader_has_no_pool() -> None:
    reader = SimpleNamespace(name="kv", is_writable=False)
    with pytest.raises(ValueError, match="arena kv is open for reading"), parts.pool(reader):
        pass
