"""Set the limits of one client at its domain, before its connection goes there."""

from contextlib import suppress

import structlog

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules import vendor_limits
from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.domains.servers import end_others, ensure_server
from mpsd.errors import MpsdError, VendorFailed

log = structlog.get_logger()


async def enforce(pool: Pool, domain: Domain, uid: int, limits: ClientLimits) -> None:
    """Set the limits inside the guard's window for them.  Raise MpsdError; then the client may not be admitted."""
    guard, defaults = domain.guard, vendor_limits.of_defaults(pool.defaults, domain.gpus)
    if not guard.is_on:
        if limits == vendor_limits.unlimited(domain.gpus) and not pool.settings.is_guarded:
            with suppress(VendorFailed):  # the link, too, finds out that the daemon does not answer
                await end_others(domain, uid, is_multiuser=pool.settings.is_multiuser)
            return
        await _turn_on(pool, domain)
    server = await ensure_server(
        domain, uid, is_multiuser=pool.settings.is_multiuser, seconds=pool.program.start_seconds
    )
    is_new = server.pid not in guard.baselines
    await guard.set_limits(server.pid, limits, defaults, domain.control)
    if is_new:
        pool.store.save_baselines(domain.name, guard.baselines)


async def _turn_on(pool: Pool, domain: Domain) -> None:
    guard = domain.guard
    servers = [server.pid for server in await domain.fresh_servers()]
    await guard.turn_on(servers, vendor_limits.of_defaults(pool.defaults, domain.gpus), domain.control)
    try:
        pool.store.save_baselines(domain.name, guard.baselines)
        await domain.apply_defaults(pool.defaults)
    except MpsdError:
        guard.is_on = False  # the next client begins anew: half on, a restart or a self-started server would be open
        raise
    log.info("limits.per_client", domain=domain.name, since="its first client with individual limits")
