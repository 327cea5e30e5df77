"""The parts of mpsd_client.torch that need PyTorch but no GPU; tests/gpu/torch tests the rest."""

import importlib
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client._native import ffi

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
parts = importlib.import_module("mpsd_client.torch")
torch_pool = importlib.import_module("mpsd_client._torch_pool")


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


class Pool:
    """Stands for PyTorch's pool, which needs a GPU."""

    def __init__(self, _: object) -> None:
        self.held = 0

    def snapshot(self) -> list[dict[str, int]]:
        return [{"allocated_size": self.held}]


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    for name, fake in {"init": lambda: None, "device": nullcontext, "MemPool": Pool, "use_mem_pool": nullcontext}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch_pool, "_allocator", lambda: SimpleNamespace(allocator=lambda: None))
    made = SimpleNamespace(name="kv", is_writable=True, generation=1, device=0, handle=ffi.NULL, attached=None)
    made.before_close = lambda call: setattr(made, "close", call)
    return made


def enter(arena: Any) -> Any:
    """Record the pool in use."""
    with parts.pool(arena):
        return arena.attached.pool


def test_a_pool_is_gone_on_with_until_another_process_has_been_the_writer(writer: SimpleNamespace) -> None:
    """Free memory in it may belong to the other process by then."""
    first = enter(writer)
    assert enter(writer) is first
    writer.generation = 3
    assert enter(writer) is not first


def test_tensors_of_an_earlier_term_keep_the_arena_open(writer: SimpleNamespace) -> None:
    first = enter(writer)
    writer.generation, first.held = 3, 512
    enter(writer)
    with pytest.raises(BufferError, match="PyTorch has 512 bytes"):
        writer.close()
    first.held = 0
    writer.close()
    assert not writer.attached.pools


def test_an_emptied_arena_is_filled_with_the_newest_image_and_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`restore_if_missing` left it alone, as a killed process had it open."""
    arena = SimpleNamespace(layout=None)

    def fill(of: Any, path: object, directory: str, ttl: float) -> None:
        assert (of, path, directory, ttl) == (arena, "/run/mpsd.sock", "/images", 9.0)
        of.layout = b"of the image"

    monkeypatch.setattr(parts, "_open_or_create", lambda *_: arena)
    monkeypatch.setattr(parts, "fill_if_empty", fill)
    monkeypatch.setattr(parts, "_adopt", lambda of, skeleton: parts.Kept(of, {}, True, of.layout))
    given = {"ttl": 9.0, "path": "/run/mpsd.sock", "images_every": 1.0, "directory": "/images"}
    kept = parts.keep("kv", lambda: pytest.fail("it is built"), capacity=1 << 21, **given)
    assert (kept.is_adopted, kept.extra) == (True, b"of the image")
