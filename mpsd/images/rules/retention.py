"""Which images are kept.  Pure."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from mpsd.images.rules.epochs import needed_for_recovery
from mpsd.images.rules.manifest import Manifest


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What the user allows in a directory of images.  None: no limit.

    quota_bytes: of disk space.  keep: images of each series.  age_seconds: since the instant of an image.
    """

    quota_bytes: Annotated[int, Meta(ge=0)] | None = None
    keep: Annotated[int, Meta(ge=1)] | None = None
    age_seconds: Annotated[float, Meta(ge=0)] | None = None


def plan_removal(images: Sequence[Manifest], now: float, keep: int | None, age_seconds: float | None) -> list[Manifest]:
    """Return the images to remove: all but the newest `keep` of each series, and those older than `age_seconds`.

    None: no limit.  The newest of each series stays, however old it is, and so do the images of the newest complete
    epoch of each group.
    """
    series = defaultdict(list)
    for each in images:
        series[each.series].append(each)
    gone, needed = [], needed_for_recovery(images, now)
    for those in series.values():
        those.sort(key=lambda each: each.instant, reverse=True)
        for place, each in enumerate(those[1:], 1):
            is_too_old = age_seconds is not None and now - each.instant > age_seconds
            if each.name not in needed and (is_too_old or (keep is not None and place >= keep)):
                gone.append(each)
    return gone
