"""status and health, from mpsd's own state alone: neither waits for a vendor daemon."""

import os
import time
from collections import Counter

from mpsd import __version__
from mpsd.api.call import Call
from mpsd.api.ports import Ports
from mpsd.model.domain import DomainState, DomainView
from mpsd.model.lease import LeaseState
from mpsd.model.service import is_unserved
from mpsd.wire.fields import Map
from mpsd.wire.messages import Nothing


async def status(call: Call[Nothing]) -> Map:
    """Return numbers, without names: every user may call it."""
    services, state = call.services, call.state
    views = services.domains.views()
    leases = Counter(lease.state for lease in services.leases.leases())
    served = services.failover.services() if services.failover else ()
    return {
        "version": __version__,
        "pid": os.getpid(),
        "uid": os.geteuid(),
        "state": _state(services),
        "started_at": services.started_at,
        "uptime_seconds": _uptime(services),
        "ends_at": services.ends_at(),
        "devices": len(services.board.devices),
        "domains": dict(Counter(view.state.value for view in views)),
        "clients": sum(view.clients for view in views),
        "leases_active": leases[LeaseState.ACTIVE],
        "leases_queued": leases[LeaseState.QUEUED],
        "queue": services.leases.queued + len(services.domains.waiting()),
        "arenas": len(services.arenas.arenas()) if services.arenas else 0,
        "keeper": _keeper(services),
        "services": len(served),
        "services_unserved": sum(map(is_unserved, served)),
        "connections": state.connections(),
        "subscribers": state.events.subscribers,
        "events_lost": state.events.lost,
        "audit_lines_lost": state.audit_lines_lost(),
        "facts": {
            **services.facts,
            "fault_sources": dict(services.fault_sources()),
            "sentinels": services.sentinels(),
            "exposed_domains": ", ".join(view.name for view in views if view.is_exposed),
            "contained_domains": ", ".join(_contained(view) for view in views if view.state is DomainState.CONTAINED),
        },
    }


def _contained(view: DomainView) -> str:
    """Return the domain, and when its clients are ended."""
    if view.ends_at is None:
        return view.name
    return f"{view.name}, ends its clients {time.strftime('at %H:%M:%S', time.localtime(view.ends_at))}"


def _keeper(services: Ports) -> Map | None:
    found = services.keeper()
    if found is None:
        return None
    return {"state": found.state, "pid": next(iter(found.pids), None), "pids": list(found.pids), "descriptors": found.held}


async def health(call: Call[Nothing]) -> Map:
    return report_health(call.services)


def report_health(services: Ports) -> Map:
    """Return the health.  `ok`: a new client would be served.  The HTTP server calls this too (mpsd/metrics/)."""
    problems = list(services.problems())
    return {
        "ok": not problems,
        "state": _state(services),
        "problems": [*problems, *services.warnings()],
        "uptime_seconds": _uptime(services),
    }


def _state(services: Ports) -> str:
    return "stopping" if services.is_stopping() else "running"


def _uptime(services: Ports) -> float:
    return max(0.0, time.time() - services.started_at)
