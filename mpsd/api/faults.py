"""The faults that mpsd has heard of since its start: the last ones, in memory.  Fed by the event bus."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpsd.api.events import Event

KEPT = 1024  # a failing GPU reports several a second


@dataclass(slots=True)
class FaultLog:
    """Guards that each fault has a number of its own, and that only the last are kept."""

    _kept: deque[tuple[int, Event]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _next: int = 1

    def take(self, event: Event) -> None:
        if event.topic.startswith("fault."):
            self._kept.append((self._next, event))
            self._next += 1

    def all(self) -> Iterable[tuple[int, Event]]:
        return tuple(self._kept)
