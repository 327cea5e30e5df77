"""The interface of all engines.  toy.py works without a real GPU, torch_engine.py runs a real model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler import Slot


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a slot's prompt: tokens at the positions from `first` on."""

    slot: int
    first: int
    tokens: tuple[int, ...]


class Engine(Protocol):
    """An engine.  In an arena, two parts of its memory outlive the process: the cache of keys and values, in pages, and the
    history, the tokens of every slot.  All operations are idempotent, also after an interruption."""

    writes: tuple[str, ...]
    """The names of the tensors in the arena that a step writes."""

    @property
    def vocab(self) -> int:
        """The size of the vocabulary."""

    def arrange(self, slots: Sequence[Slot]) -> None:
        """Set the slots for the next launches.  Call it only while no launch is running."""

    def keep(self, slot: int, tokens: Sequence[int]) -> None:
        """Write a text as a slot's history, and wait until it is written.  Call it only while no launch is running."""

    def kept(self, slot: int, first: int, end: int) -> list[int]:
        """Return the tokens of a slot's history from `first` to before `end`."""

    def chunk(self, left: int) -> int:
        """Return how many tokens to prefill at once if this many are left.  The result depends only on the number, because a
        prefill repeated by another process has to give the same bits."""

    def launch(self, chunk: Chunk | None, is_step: bool) -> None:
        """Start the prefill of a chunk, and then a step of all decoding slots."""

    def wait(self) -> list[int]:
        """Wait for the launched work, and return a token for each slot; only those of decoding slots are meaningful."""
