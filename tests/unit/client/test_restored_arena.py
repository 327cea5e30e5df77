"""In which order the blocks of an image come while its arena is used."""

import pytest
from mpsd_client import LayoutError, TensorSpec
from mpsd_client._restored_arena import BLOCK_BYTES, blocks_of, fill_order

NUMBERS = {at * BLOCK_BYTES: number for number, at in enumerate([0, 1, 2, 5, 6, 9])}  # of blocks with gaps between them
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
