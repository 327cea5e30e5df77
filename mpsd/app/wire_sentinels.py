"""The one place that builds the sentinels, and connects them with the domains and the relay."""

import structlog

from mpsd.app import settings
from mpsd.app.startup import Startup
from mpsd.domains.pool import Pool
from mpsd.sentinel.sentinels import Sentinels

log = structlog.get_logger()


def join_sentinels(found: Startup, pool: Pool) -> Sentinels | None:
    """Return the sentinels of the pool's domains; None where clients do not come through mpsd."""
    wanted = settings.sentinel(found.config)
    if not found.is_privileged:
        if wanted.is_on:
            log.error("sentinel.absent", why="without root mpsd cannot start one as each client's user, nor before its context")
        return None
    sentinels = Sentinels(pool, wanted)
    pool.sentinel_of = sentinels.protect
    return sentinels
