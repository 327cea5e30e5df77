"""Which epochs of a group are complete, and what a recovery takes.  Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mpsd.images.rules.manifest import Manifest
from mpsd.images.rules.membership import Epoch


class EpochState(Struct, frozen=True):
    """An epoch of which at least one member has an image.  images: their names, by member."""

    life: int
    number: int
    instant: float
    is_complete: bool
    images: dict[str, str]
    missing: tuple[str, ...]


def epochs_of(images: Iterable[Manifest], group: str, now: float) -> list[EpochState]:
    """Return the epochs of a group, by life and number.

    Images count together only if they state the same members, quorum and grace time.
    """
    found: defaultdict[Epoch, dict[str, Manifest]] = defaultdict(dict)
    for each in images:
        if each.epoch is not None and each.epoch.group == group:
            found[replace(each.epoch, member="")].setdefault(each.epoch.member, each)  # a copy of an image has the same bytes
    states = [_state(epoch, those, now) for epoch, those in found.items()]
    return sorted(states, key=lambda each: (each.life, each.number))


def _state(epoch: Epoch, images: dict[str, Manifest], now: float) -> EpochState:
    missing = tuple(name for name in epoch.members if name not in images)
    is_complete = not missing
    if missing and len(images) >= epoch.quorum:
        since = sorted(each.written_at for each in images.values())[epoch.quorum - 1]
        is_complete = now - since >= epoch.grace_seconds
    instant = max(each.instant for each in images.values())
    return EpochState(epoch.life, epoch.number, instant, is_complete, {key: each.name for key, each in images.items()}, missing)


def newest_complete(epochs: Sequence[EpochState]) -> EpochState | None:
    return next((each for each in reversed(epochs) if each.is_complete), None)


def next_life(epochs: Sequence[EpochState], now: float) -> int:
    """Return the number of a life that begins now: later than all of the past, and unlike one that left no image."""
    return max([int(now * 1e6), *(each.life + 1 for each in epochs)])


def needed_for_recovery(images: Sequence[Manifest], now: float) -> set[str]:
    """Return the names of the images that the groups would be recovered from."""
    needed: set[str] = set()
    for group in {each.epoch.group for each in images if each.epoch is not None}:
        newest = newest_complete(epochs_of(images, group, now))
        needed.update(newest.images.values() if newest else ())
    return needed
