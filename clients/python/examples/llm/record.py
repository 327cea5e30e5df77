"""What is in flight as a forward state: written by the active at every step, read by the process that takes over.

What changes at every step is a counter and a token for each slot, which lie beside each other.  Everything else changes when a
request comes or goes: where a slot is in its text is kept as `born`, its position less the step, which stays the same while it
is decoded.  Prose: mpsd's docs/state.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from scheduler import Phase, Size, Slot

PUBLISHED = ("step", "token")  # at every step
# Of a slot's fields, those that are kept by their own names.
_KEPT = {
    "request": "uint64",
    "prompt": "uint32",
    "fill": "uint32",
    "filled": "uint32",
    "end": "uint32",
    "seed": "uint64",
    "temperature": "float32",
    "top_k": "uint32",
    "stop": "int64",
}


def schema(size: Size) -> dict[str, str]:
    """For mpsd_client.Service and State."""
    arrays = {"token": "uint32", "born": "int64", "phase": "uint8"} | _KEPT
    found = {"step": "uint64"} | {name: f"{kind}[{size.slots}]" for name, kind in arrays.items()}
    return found | {"pages": f"uint32[{size.slots * size.per_slot}]"}


def slots_of(record: Mapping[str, Any], size: Size) -> list[Slot]:
    """All slots, as they were after the record's step.  Raises ValueError: a phase that there is not."""
    step = record["step"]
    columns = {name: record[name] for name in ("phase", "born", "token", "pages", *_KEPT)}  # each is unpacked once
    slots = []
    for number in range(size.slots):
        slot = Slot(number, Phase(columns["phase"][number]))
        slots.append(slot)
        if slot.phase is Phase.FREE:
            continue
        for name in _KEPT:
            setattr(slot, name, columns[name][number])
        slot.token = columns["token"][number]
        # One that is not decoded stands still while the steps go on.
        slot.position = columns["born"][number] + (step if slot.phase is Phase.DECODE else 0)
        first = number * size.per_slot
        slot.pages = tuple(columns["pages"][first : first + -(-slot.end // size.page)])
    return slots


class Journal(Protocol):
    """Where it is written down what is in flight."""

    def write(self, slot: Slot, step: int) -> None:
        """More of it than its token has changed; to be published with what comes next."""

    def publish(self, step: int, slots: list[Slot]) -> None:
        """From here on a process that takes over goes on behind this step."""


class Forward:
    """A journal in a forward state.  publish_: of a term, as its publisher of PUBLISHED."""

    def __init__(self, state: Any, publish_: Callable[..., None], size: Size) -> None:
        self._state, self._publish, self._size = state, publish_, size
        self._views = {name: state.view(name) for name in ("born", "phase", "pages", *_KEPT)}

    def write(self, slot: Slot, step: int) -> None:
        moving = slot.phase is Phase.DECODE
        self._set("phase", slot.number, slot.phase)
        self._set("born", slot.number, slot.position - (step if moving else 0))
        for name in _KEPT:
            self._set(name, slot.number, getattr(slot, name))
        pages, first = self._views["pages"], slot.number * self._size.per_slot
        for place, page in enumerate(slot.pages, first):
            pages[place] = page
        self._state.changed("pages", first, len(slot.pages))

    def _set(self, name: str, number: int, value: Any) -> None:
        self._views[name][number] = value
        self._state.changed(name, number, 1)

    def publish(self, step: int, slots: list[Slot]) -> None:
        self._publish(step, *[slot.token for slot in slots])


class Nowhere:
    """A journal for memory that nobody takes over."""

    def write(self, slot: Slot, step: int) -> None:
        pass

    def publish(self, step: int, slots: list[Slot]) -> None:
        pass
