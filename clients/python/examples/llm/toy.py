"""An engine without a model: it computes each token from the previous ones by arithmetic, through a paged cache as a real one.

It serves to test everything around the model, on the simulated driver or on a GPU.  `continued` returns the expected tokens.
"""

import time
from array import array
from collections.abc import Sequence
from typing import Protocol

from engine import Chunk
from scheduler import Phase, Size, Slot

VOCAB = 50_000
CHUNK = 8
CELL_BYTES = 4
_WORD = (1 << 32) - 1


def mix(*words: int) -> int:
    """Return a 32-bit hash of the words and their order."""
    found = 0x9E3779B9
    for word in words:
        found = ((found ^ word) * 0x85EBCA6B) & _WORD
        found ^= found >> 15
    return found


def drawn(cell: int, position: int, seed: int, temperature: float) -> int:
    """Return the token at a position.  cell: the cache cell of the position before.  A greedy draw ignores the seed."""
    return mix(cell, position, (seed & _WORD) + 1 if temperature else 0) % VOCAB


def continued(prompt: Sequence[int], count: int, seed: int = 0, temperature: float = 0.0, stop: int = -1) -> list[int]:
    """Return the tokens that a correct server answers."""
    cell, tokens = 0, list(prompt)
    for position, token in enumerate(prompt):
        cell = mix(cell, token, position)
    while len(tokens) < len(prompt) + count:
        tokens.append(drawn(cell, len(tokens), seed, temperature))
        if tokens[-1] == stop:
            break
        cell = mix(cell, tokens[-1], len(tokens) - 1)
    return tokens[len(prompt) :]


class Memory(Protocol):
    """An array of 32-bit cells."""

    def read(self, first: int, count: int) -> "array[int]": ...

    def write(self, first: int, cells: "array[int]") -> None: ...


class PlainMemory:
    """Cells in host memory of this process."""

    def __init__(self, count: int) -> None:
        self._cells = array("I", bytes(CELL_BYTES * count))

    def read(self, first: int, count: int) -> "array[int]":
        return self._cells[first : first + count]

    def write(self, first: int, cells: "array[int]") -> None:
        self._cells[first : first + len(cells)] = cells


class ToyEngine:
    """The engine.  cache: one cell per token of each page.  history: one cell per token of the longest text, for each slot.
    pace_seconds: the least duration of a step, as a GPU would take some time."""

    vocab = VOCAB
    writes = ("cache", "history")

    def __init__(self, size: Size, cache: Memory, history: Memory, pace_seconds: float = 0.0) -> None:
        self._size, self._cache, self._history, self._pace_seconds = size, cache, history, pace_seconds
        self._slots: list[Slot] = []
        self._at: dict[int, tuple[int, int]] = {}  # position and token of each decoding slot, as a GPU has them
        self._drawn: list[int] = []

    def arrange(self, slots: Sequence[Slot]) -> None:
        self._slots = list(slots)
        self._at = {slot.number: (slot.position, slot.token) for slot in slots if slot.phase is Phase.DECODE}

    def keep(self, slot: int, tokens: Sequence[int]) -> None:
        self._history.write(slot * self._size.length, array("I", tokens))

    def kept(self, slot: int, first: int, end: int) -> list[int]:
        return list(self._history.read(slot * self._size.length + first, end - first)) if first < end else []

    def chunk(self, left: int) -> int:
        return min(left, CHUNK)

    def launch(self, chunk: Chunk | None, is_step: bool) -> None:
        if chunk:
            for place, token in enumerate(chunk.tokens, chunk.first):
                self._take_in(self._slots[chunk.slot], place, token)
        self._drawn = [0] * self._size.slots
        if is_step:
            for number, (position, token) in self._at.items():
                slot = self._slots[number]
                cell = self._take_in(slot, position, token)
                token = drawn(cell, position + 1, slot.seed, slot.temperature)
                self._history.write(number * self._size.length + position + 1, array("I", [token]))
                self._at[number], self._drawn[number] = (position + 1, token), token

    def wait(self) -> list[int]:
        time.sleep(self._pace_seconds)
        return self._drawn

    def _take_in(self, slot: Slot, position: int, token: int) -> int:
        """Compute and store the cache cell of this position, and return it."""
        before = self._cache.read(self._place(slot, position - 1), 1)[0] if position else 0
        cell = mix(before, token, position)
        self._cache.write(self._place(slot, position), array("I", [cell]))
        return cell

    def _place(self, slot: Slot, position: int) -> int:
        return slot.pages[position // self._size.page] * self._size.page + position % self._size.page
