"""How a bug that shows at one service leaves mpsd, and all other services, as they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from mpsd.services.members import ServiceRecord

log = structlog.get_logger()
AGAIN_SECONDS = 1.0  # until a task that found an error looks at that service again, if no change comes before
_MOST_NAMES = 8


@contextmanager
def guarded(*records: ServiceRecord, **facts: object) -> Iterator[None]:
    """Log an error in this block, and go on after it.  records: the services that it concerns, all of one owner.

    Each step that a task of services takes for one service runs in it, and each that another part calls for all of them: the
    error would end the task, and with it mpsd for all users.
    """
    try:
        yield
    except Exception:
        if records:  # with the owner's uid the owner's limit of lines applies
            names = ", ".join(each.arena.name for each in records[:_MOST_NAMES])
            facts |= {"service": names, "owner_uid": records[0].arena.owner_uid}
        log.exception("service.bug", **facts)
