"""Offers that take more of the receiver's memory than their bytes."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from mpsd.errors import BadRequest
from mpsd.images.receiving import receive
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.transfer import VERSION, Offer, OfferedArena
from mpsd.images.store import Images
from mpsd.images.stream import Stream
from tests.unit.images.making import facts

ALLOCATIONS = 2000  # of an arena


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Images]:
    with Images.open(tmp_path / "there") as made:
        yield made


@pytest.mark.parametrize(
    ("size", "why"),
    [
        pytest.param(0, "an allocation of 0 bytes at 0x0 is not of whole blocks", id="no blocks"),
        pytest.param(BLOCK_BYTES, "image first has 4000 blocks or more, .* 3000 at most", id="too many blocks"),
    ],
)
def test_no_offer_takes_much_more_memory_than_its_bytes(
    there: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, why: str
) -> None:
    """All arenas were decoded before any was checked: an offer of 512 MiB took 12 GiB."""
    monkeypatch.setattr("mpsd.images.rules.transfer.MOST_BLOCKS", 3000)
    places = tuple((number * size, size) for number in range(ALLOCATIONS))
    arenas = [_arena(f"a{number}", places) for number in range(200)]
    body = msgpack.encode(Offer(VERSION, "first", "", 1.0, tuple(arenas)))
    (tmp_path / "sent").write_bytes(len(body).to_bytes(4, "little") + body)
    sent, answers = os.open(tmp_path / "sent", os.O_RDONLY), os.open(tmp_path / "answers", os.O_WRONLY | os.O_CREAT)
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match=why):
            receive(there, Stream(sent, answers))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(sent)
        os.close(answers)
    assert peak < 2 * len(body) + (1 << 20)


def _arena(name: str, places: tuple[tuple[int, int], ...]) -> OfferedArena:
    whole = sum(size for _, size in places)
    made = replace(facts(name=name), allocations=places, window_bytes=max(whole, BLOCK_BYTES))
    return OfferedArena(made, bytes(whole // BLOCK_BYTES * 16))
