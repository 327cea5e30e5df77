"""The sources of all numbers."""

from collections.abc import Callable

from msgspec import Struct

from mpsd.api.event_bus import EventBus
from mpsd.api.ports import Ports
from mpsd.metrics.counters import Counters


def none() -> int:
    """Return 0, for a part that the daemon lacks, as the relay of an unprivileged one."""
    return 0


class Readings(Struct, frozen=True):
    """Numbers of other modules, each read on request."""

    relay_connections: Callable[[], int] = none
    api_connections: Callable[[], int] = none
    log_lines_lost: Callable[[], int] = none
    audit_lines_lost: Callable[[], int] = none


class MetricsSource(Struct, frozen=True):
    services: Ports
    events: EventBus
    tallies: Counters
    readings: Readings
