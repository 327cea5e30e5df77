"""Everything that a number can come from."""

from collections.abc import Callable
from dataclasses import dataclass

from mpsd.api.events import EventBus
from mpsd.api.services import Services
from mpsd.metrics.tallies import Tallies


def none() -> int:
    """Of what is not there, as the relay of an unprivileged daemon."""
    return 0


@dataclass(frozen=True, slots=True)
class Readings:
    """Numbers that somebody else knows, each read when it is asked for."""

    relay_connections: Callable[[], int] = none
    api_connections: Callable[[], int] = none
    log_lines_lost: Callable[[], int] = none
    audit_lines_lost: Callable[[], int] = none


@dataclass(frozen=True, slots=True)
class Source:
    services: Services
    events: EventBus
    tallies: Tallies
    readings: Readings
