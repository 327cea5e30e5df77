"""The epoch of a group that an image belongs to.  Pure."""

import math
from typing import Annotated

from msgspec import Meta, Struct

from mpsd.errors import BadRequest
from mpsd.images.rules.naming import check_name

MOST_MEMBERS = 1024
_MOST_NUMBER = 2**53 - 1  # JSON has no larger whole number for all who read it


class Epoch(Struct, frozen=True):
    """The part of one member in an epoch of a group of processes; the members come to it by themselves.

    life: of the group, from one start of all members to the next; a later one has a higher number.  number: of the epoch in
    that life, ascending.  The epoch is complete with the images of all members, or of `quorum` of them after `grace_seconds`.
    """

    group: str
    member: str
    members: Annotated[tuple[str, ...], Meta(max_length=MOST_MEMBERS)]
    life: int
    number: int
    quorum: int
    grace_seconds: float = 0.0


def check_epoch(epoch: Epoch) -> None:
    """Raise BadRequest if no image can be of this epoch."""
    for name in (epoch.group, *epoch.members):
        check_name(name)
    if not 1 <= len(epoch.members) <= MOST_MEMBERS or len(set(epoch.members)) < len(epoch.members):
        raise BadRequest(f"group {epoch.group} has {len(epoch.members)} members: name 1 to {MOST_MEMBERS}, each once")
    if epoch.member not in epoch.members:
        raise BadRequest(f"{epoch.member:.140} is no member of group {epoch.group}, which has {', '.join(epoch.members):.500}")
    if not len(epoch.members) // 2 < epoch.quorum <= len(epoch.members):
        raise BadRequest(f"a quorum of {epoch.quorum} for {len(epoch.members)} members: more than half, and all at most")
    if not (0 < epoch.life <= _MOST_NUMBER and 0 <= epoch.number <= _MOST_NUMBER):
        raise BadRequest(f"life {epoch.life} and epoch {epoch.number} of group {epoch.group}: whole numbers up to 2^53 - 1")
    if not 0 <= epoch.grace_seconds < math.inf:
        raise BadRequest(f"a grace time of {epoch.grace_seconds} s for group {epoch.group}: 0 or more")
