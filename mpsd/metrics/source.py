"""The sources of all numbers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from mpsd.api.authority import Peer
from mpsd.api.event_bus import EventBus
from mpsd.api.ports import Ports
from mpsd.errors import NoSuchMethod
from mpsd.metrics.counters import Counters


def none() -> int:
    """Return 0, for a part that the daemon lacks, as the relay of an unprivileged one."""
    return 0


async def refuse(peer: Peer, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse any method, for a daemon without a socket."""
    raise NoSuchMethod(f"unknown method {method}")


class Readings(Struct, frozen=True):
    """Numbers of other modules, each read on request."""

    relay_connections: Callable[[], int] = none
    api_connections: Callable[[], int] = none
    log_lines_lost: Callable[[], int] = none
    audit_lines_lost: Callable[[], int] = none
    ask: Callable[[Peer, str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]] = refuse


class MetricsSource(Struct, frozen=True):
    services: Ports
    events: EventBus
    tallies: Counters
    readings: Readings
