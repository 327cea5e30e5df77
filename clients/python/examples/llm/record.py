"""The requests in flight as a forward state: the active writes it at every step, the process that takes over reads it.

Each step changes one counter and one token per slot; these fields are adjacent.  All other fields change only when a request
comes or goes: a slot's position is kept as `born`, the position minus the step, which stays constant while the slot decodes.
Prose: mpsd's docs/state.md.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from scheduler import Phase, Size, Slot

PUBLISHED = ("step", "token")  # at every step
# The fields of a slot that the record keeps under the same names.
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
    """Return the schema of the record, for mpsd_client.Service and State."""
    arrays = {"token": "uint32", "born": "int64", "phase": "uint8"} | _KEPT
    found = {"step": "uint64"} | {name: f"{kind}[{size.slots}]" for name, kind in arrays.items()}
    return found | {"pages": f"uint32[{size.slots * size.per_slot}]"}


def slots_of(record: Mapping[str, Any], size: Size) -> list[Slot]:
    """Return all slots as they were after the record's step.  Raises ValueError for an unknown phase."""
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
        # The position of a slot that does not decode stays the same while the step grows.
        slot.position = columns["born"][number] + (step if slot.phase is Phase.DECODE else 0)
        first = number * size.per_slot
        slot.pages = tuple(columns["pages"][first : first + -(-slot.end // size.page)])
    return slots


class Journal(Protocol):
    """A place to record the requests in flight."""

    def write(self, slot: Slot, step: int) -> None:
        """Write all fields of a changed slot but its token; the next publish makes them valid."""

    def publish(self, step: int, slots: list[Slot]) -> None:
        """Publish the step: from now on, a process that takes over continues after it."""


class Forward:
    """A journal in a forward state.  publish_: the function that publishes the PUBLISHED fields, from the term."""

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
    """A journal that records nothing, for memory that no other process takes over."""

    def write(self, slot: Slot, step: int) -> None:
        pass

    def publish(self, step: int, slots: list[Slot]) -> None:
        pass
