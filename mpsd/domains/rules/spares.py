"""Decide how many fault domains to keep ready, and which to retire (docs/domains.md, "Spares").

A spare is a domain with a started server and without clients: when the others are in FAULT or full, a client joins it at once.
Before the first client mpsd keeps no spare, so that an idle mpsd costs no GPU memory.
"""

from collections.abc import Sequence

from msgspec import Struct

from mpsd.domains.rules.placement import Rules, room
from mpsd.model.domain import DomainState, DomainView


class SparePlan(Struct, frozen=True):
    """create: the number of domains to create.  warm: domains to start a server in.  retire: domains to retire."""

    create: int = 0
    warm: tuple[str, ...] = ()
    retire: tuple[str, ...] = ()


def plan_spares(
    gpus: frozenset[str], domains: Sequence[DomainView], idle: frozenset[str], wanted: int, rules: Rules
) -> SparePlan:
    """Plan the spares for one set of GPUs, within the bound of each GPU.

    `domains`: of all GPUs.  `idle`: those without clients for longer than configured.
    """
    everywhere = [domain for domain in domains if domain.state is not DomainState.GONE]
    alive = [domain for domain in everywhere if domain.gpus == gpus]
    in_use = any(domain.clients for domain in alive)
    if rules.is_exclusive or not wanted or not in_use:
        return SparePlan(retire=_surplus(alive, idle, keep=0))
    ready = [domain for domain in alive if domain.state is DomainState.READY and not domain.clients]
    coming = [domain for domain in alive if domain.state in (DomainState.STARTING, DomainState.RECYCLING)]
    missing = wanted - len(ready) - len(coming)
    cold = tuple(domain.name for domain in ready[:wanted] if domain.uid is None)
    dead = sum(domain.state is DomainState.DEAD for domain in alive)
    if dead > wanted:
        missing = 0  # if none of these starts, another one will not either
    create = max(0, min(missing, room(gpus, everywhere, rules)))
    return SparePlan(create, cold, _surplus(alive, idle, keep=wanted))


def _surplus(domains: Sequence[DomainView], idle: frozenset[str], keep: int) -> tuple[str, ...]:
    """Return the youngest idle domains beyond `keep`; never the oldest domain, which takes the next client."""
    free = [d for d in domains if d.state is DomainState.READY and not d.clients and d.number > 1]
    return tuple(domain.name for domain in free[keep:] if domain.name in idle)
