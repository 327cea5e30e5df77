"""What computes: the words that all engines understand.  toy.py needs no real GPU, torch_engine.py has a real model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler import Slot


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt: these tokens, at `first` and behind it, of this slot."""

    slot: int
    first: int
    tokens: tuple[int, ...]


class Engine(Protocol):
    """Its memory has two parts that outlive the process where it lies in an arena: the cache of keys and values, in pages, and
    the history, the tokens of every slot.  What is done twice gives the same twice, whatever was cut off in between."""

    @property
    def vocab(self) -> int:
        """How many tokens there are."""

    def arrange(self, slots: Sequence[Slot]) -> None:
        """From the next launch on the slots are so.  Nothing is under way."""

    def keep(self, slot: int, tokens: Sequence[int]) -> None:
        """A text becomes a slot's history; it is there when this returns.  Nothing is under way."""

    def kept(self, slot: int, first: int, end: int) -> list[int]:
        """Tokens of a slot's history."""

    def chunk(self, left: int) -> int:
        """How many tokens to fill in at once where so many are left.  The same for the same number, always: a fill that is
        done again, by whomever, has to give the same bits."""

    def launch(self, chunk: Chunk | None, is_step: bool) -> None:
        """Begins to fill in a piece of a prompt, and then a step of all slots that are decoded."""

    def wait(self) -> list[int]:
        """Until that is done: the token that was drawn for each slot, which means something for those that are decoded."""
