"""Which images are kept.  Pure."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from mpsd.images.rules.epochs import needed_for_recovery
from mpsd.images.rules.manifest import Manifest
from mpsd.images.rules.transfer import PARTIAL


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
    epoch of each group; but no partial image to which no transfer has added anything for that long.
    """
    series = defaultdict(list)
    for each in images:
        series[each.series].append(each)
    gone, needed = [], needed_for_recovery(images, now)
    for those in series.values():
        those.sort(key=lambda each: each.instant, reverse=True)
        for place, each in enumerate(those):
            is_partial = each.group.endswith(PARTIAL)
            since = each.written_at if is_partial else each.instant
            is_too_old = age_seconds is not None and now - since > age_seconds
            stays = each.name in needed or (place == 0 and not is_partial)
            if not stays and (is_too_old or (keep is not None and place >= max(keep, 1))):
                gone.append(each)
    return gone
