"""A few blocks, as the last image of a move has, are copied by as many threads as many are."""

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

filling = pytest.importorskip("mpsd.images.imager.filling")
copier = pytest.importorskip("mpsd.images.imager.copier")


@pytest.mark.parametrize(("blocks", "largest"), [(3, 1), (14, 2), (64, 8), (200, 8)])
def test_to_the_host(blocks: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[list[int]] = []
    made: Any = object.__new__(copier.Copier)
    vars(made).update(_free=SimpleQueue(), _pool=ThreadPoolExecutor(1))
    for slot in range(copier.SLOTS):
        made._free.put(slot)

    def deliver(slot: int, *_: Any) -> None:
        made._free.put(slot)
        _[-1].release()

    monkeypatch.setattr(made, "_enqueue", lambda slot, piece, sums: pieces.append(list(piece)))
    monkeypatch.setattr(made, "_deliver", deliver)
    made.save(range(blocks), lambda *_: None, rate=float("inf"))
    assert [each for piece in pieces for each in piece] == list(range(blocks))
    assert max(map(len, pieces)) == largest


@pytest.mark.parametrize(("blocks", "largest", "lanes"), [(1, 1, 1), (14, 2, 7), (48, 4, 12), (100, 4, 12)])
def test_from_the_host(blocks: int, largest: int, lanes: int) -> None:
    sent, used, done, asked = list[int](), set[int](), list[int](), list[int]()

    class Lane:
        def send(self, _piece: int, files: list[int], slots: list[int], _addresses: list[int]) -> int:
            assert files == [each + 1000 for each in slots]
            sent.append(len(slots))
            used.add(id(self))
            return len(slots)

        def sums(self, _piece: int, count: int) -> list[bytes]:
            return [b""] * count

    def places(_arena: int, numbers: list[int]) -> tuple[list[int], list[int]]:
        asked.append(len(numbers))
        return [each + 1000 for each in numbers], list(numbers)

    image: Any = SimpleNamespace(places=places, is_block=lambda *_: True)
    gpu: Any = SimpleNamespace(set_current=lambda: None)
    order = [2 * each for each in range(blocks)]  # not all
    every = [(number, number) for number in range(2 * blocks)]
    one = filling.Filling(image, 0, every, order, done.extend, lambda: True)
    assert one.run(gpu, [Lane() for _ in range(12)])
    assert sorted(done) == order
    assert (max(sent), len(used) <= lanes) == (largest, True)
    assert max(asked) == largest  # the first piece does not wait until the places of all blocks are known
