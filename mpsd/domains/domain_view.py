"""Show a domain as placement and the plan for spares see it."""

import math
import time

import trio

from mpsd.domains.domain import Domain
from mpsd.model.domain import Defaults, DomainState, DomainView


def view_of(domain: Domain, defaults: Defaults) -> DomainView:
    """Return the view of a domain.  One that would give a client outdated defaults takes no clients."""
    occupancy, state = domain.occupancy, _state(domain, defaults)
    return DomainView(
        domain.name,
        state,
        frozenset(domain.gpus),
        _uid(domain, occupancy),
        occupancy,
        domain.capacity,
        domain.is_public,
        domain.number,
        domain.key,
        is_answering=domain.is_answering,
        is_exposed=domain.is_exposed,
        trouble=_trouble(domain, state),
        users=frozenset(domain.uids.values()),
        is_worn=domain.is_worn,
        ends_at=_ends_at(domain),
        is_blocked=domain.blocked_by is not None,
        blocked_uid=domain.blocked_by and domain.blocked_by[1],
        failing=domain.failures.failing_users,
    )


def _state(domain: Domain, defaults: Defaults) -> DomainState:
    if domain.state is not DomainState.READY:
        return domain.state
    if domain.is_ill:
        return DomainState.SILENT if domain.silenced.is_set() else DomainState.FAULT
    if domain.is_draining:
        return DomainState.DRAINING
    is_outdated = domain.applied_defaults != defaults or domain.has_outdated_spare(defaults)
    return DomainState.RECYCLING if is_outdated else DomainState.READY


def _uid(domain: Domain, occupancy: int) -> int | None:
    """Return the user that the domain serves.

    A client that is connecting decides before a server does: the server may not run yet, or may be about to shut down.
    """
    if domain.joined_uid is not None and occupancy:
        return domain.joined_uid
    return next((server.uid for server in domain.servers.values()), None)


def _trouble(domain: Domain, state: DomainState) -> str:
    """Return why the domain takes no clients, as far as the state does not show it."""
    if state in (DomainState.DEAD, DomainState.STARTING, DomainState.CONTAINED):
        return domain.trouble
    return domain.hindrance if state is DomainState.SILENT else ""


def _ends_at(domain: Domain) -> int | None:
    """Return when mpsd ends the clients of a CONTAINED domain, in seconds since the epoch."""
    if domain.state is not DomainState.CONTAINED or domain.ends_by == math.inf:
        return None
    return round(time.time() + domain.ends_by - trio.current_time())
