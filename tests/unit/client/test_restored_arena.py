"""In which order the blocks of an image come while its arena is used."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client import LayoutError, TensorSpec, _restored_arena
from mpsd_client._restored_arena import blocks_of, fill_order
from mpsd_client._restoring import BLOCK_BYTES, BlockNumbers

# Of blocks with gaps between them:
NUMBERS = BlockNumbers([(at * BLOCK_BYTES, count * BLOCK_BYTES) for at, count in [(0, 1), (1, 2), (5, 2), (9, 1)]])
TENSORS = {
    name: TensorSpec(offset, "uint8", (size,), (1,))
    for name, offset, size in (
        ("embed", 0, BLOCK_BYTES + 1), ("head", BLOCK_BYTES + 1, 100), ("layers.0.w", 5 * BLOCK_BYTES, 2 * BLOCK_BYTES),
        ("layers.1.w", 9 * BLOCK_BYTES + 512, 1), ("layers.10.w", 2 * BLOCK_BYTES, 1), ("none", 0, 0),
    )
}  # fmt: skip


def test_named_tensors_come_first_and_each_block_once() -> None:
    assert fill_order(TENSORS, ["layers.1", "layers.0", "head", "none"], NUMBERS) == [5, 3, 4, 1, 0, 2]


def test_a_tensor_is_in_every_block_that_has_a_byte_of_it() -> None:
    assert blocks_of(TENSORS, ["embed"], NUMBERS) == [0, 1]
    assert blocks_of(TENSORS, ["layers"], NUMBERS) == [3, 4, 5, 2]
    with pytest.raises(LayoutError, match=r"no tensor layers\.2"):
        blocks_of(TENSORS, ["layers.2"], NUMBERS)


@pytest.mark.parametrize(("first", "blocks"), [(3, 1), (2, 4), (9, 2), (4, 2)])
def test_a_tensor_outside_of_the_memory_is_refused(first: int, blocks: int) -> None:
    """The imager would wait for the memory of a block that does not exist."""
    with pytest.raises(LayoutError, match="the image"):
        NUMBERS.within(first * BLOCK_BYTES, blocks * BLOCK_BYTES)


def test_the_imager_has_the_order_before_it_makes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it copies the first blocks while it makes memory for the others, and while mpsd takes what is made."""
    done: list[str] = []
    mpsd = SimpleNamespace(ask=lambda call: done.append(call.method))
    monkeypatch.setattr(_restored_arena, "Client", lambda *_, **__: nullcontext(mpsd))
    source: Any = SimpleNamespace(
        layout=None, numbers=NUMBERS, fill=lambda order: done.append(f"fill {order}"), put=lambda *_: done.append("put")
    )
    made: Any = SimpleNamespace(
        tensors=TENSORS, id=1, generation=1, gpu="GPU-1", _socket=None, refresh=lambda: done.append("refresh")
    )
    _restored_arena._begin(made, source, ["layers.1"])
    assert done == ["fill [5, 0, 1, 2, 3, 4]", "put", "arena.commit", "refresh"]
