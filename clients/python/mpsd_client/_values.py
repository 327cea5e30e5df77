"""The values in mpsd's answers, frozen.  Units are in the names; times without a unit are seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mpsd_client._arena_values import *  # noqa: F403
from mpsd_client._daemon_values import *  # noqa: F403
from mpsd_client._fault_values import *  # noqa: F403
from mpsd_client._lease_values import *  # noqa: F403
from mpsd_client._selector import Selector as Selector
from mpsd_client._service_values import *  # noqa: F403

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    topic: str
    time: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Marks missing events: `count` were dropped because this client was too slow."""

    count: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `next` is where the rest begins, None at the end."""

    items: tuple[T, ...]
    next: int | None
