"""Check the specification of an arena.  Pure.  usage.py checks whether it fits."""

from mpsd.errors import BadRequest, TooMany
from mpsd.fairness.client_slots import hindrance_of_slots
from mpsd.model.arena import GRANULE, MOST_CAPACITY_BYTES, MOST_WINDOW_BYTES, WINDOW_UNIT, Arena, ArenaSpec
from mpsd.model.device import Device
from mpsd.model.quantities import render_size
from mpsd.vault.rules.windows import round_up, window_bytes

MOST_READERS = 256


def check_spec(spec: ArenaSpec) -> tuple[int, int]:
    """Return its capacity and its window in bytes, in whole units.  Raise BadRequest."""
    if not GRANULE <= spec.capacity_bytes <= MOST_CAPACITY_BYTES:
        accepted = f"{render_size(GRANULE)} to {render_size(MOST_CAPACITY_BYTES)}"
        raise BadRequest(f"a capacity of {render_size(spec.capacity_bytes)}; accepted: {accepted}")
    capacity = round_up(spec.capacity_bytes, GRANULE)
    window = window_bytes(capacity, spec.window_bytes)
    if not max(capacity, WINDOW_UNIT) <= window <= MOST_WINDOW_BYTES:
        accepted = f"the capacity of {render_size(capacity)} to {render_size(MOST_WINDOW_BYTES)}"
        raise BadRequest(f"a window of {render_size(window)}; accepted: {accepted}")
    return capacity, window


def check_fits(name: str, capacity_bytes: int, device: Device | None) -> None:
    """Refuse a capacity that the GPU could never hold.  device: None if the GPU has gone.  Raise BadRequest."""
    if device is not None and capacity_bytes > device.total_bytes:
        found = f"GPU {device.ordinal} ({device.uuid}) has {render_size(device.total_bytes)}"
        raise BadRequest(f"a capacity of {render_size(capacity_bytes)} for arena {name}: {found}")


def check_readers(arena: Arena, own: int, *, is_preferred: bool) -> None:
    """Check whether one more process may read the arena, of a user with `own` of its readers.  Raise TooMany.

    is_preferred: the user is root, or the arena's owner, who may have all places.
    """
    if len(arena.readers) >= MOST_READERS:
        raise TooMany(f"arena {arena.name} is open for reading in {len(arena.readers)} processes, and no more may")
    if kept := hindrance_of_slots(MOST_READERS, own, len(arena.readers), is_preferred, "readers of an arena"):
        raise TooMany(kept)
