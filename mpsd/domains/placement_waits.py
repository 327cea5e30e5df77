"""Clients that may run and wait for a fault domain: who, since when, and why."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mpsd.model import ProcessId


@dataclass(slots=True)
class PlacementWait:
    """One process that waits.  connections: how many of its connections do."""

    process: ProcessId
    uid: int
    reason: str = ""
    since: float = field(default_factory=time.monotonic)
    connections: int = 0

    @property
    def waited_seconds(self) -> float:
        return time.monotonic() - self.since


class PlacementWaits:
    """Guards that a process is listed while one of its connections waits, and no longer."""

    def __init__(self) -> None:
        self._waits: dict[ProcessId, PlacementWait] = {}

    @contextmanager
    def begin(self, process: ProcessId | None, uid: int) -> Iterator[None]:
        """While one connection of the process waits; None is a process that mpsd cannot see, and does not list."""
        if process is None:
            yield
            return
        wait = self._waits.setdefault(process, PlacementWait(process, uid))
        wait.connections += 1
        try:
            yield
        finally:
            wait.connections -= 1
            if not wait.connections:
                del self._waits[process]

    def explain(self, process: ProcessId | None, reason: str) -> None:
        """Note what it waits for now."""
        if process is not None and (wait := self._waits.get(process)):
            wait.reason = reason

    def __len__(self) -> int:
        return len(self._waits)

    def oldest(self) -> PlacementWait | None:
        """The one that has waited longest of those whose reason is known."""
        return next((wait for wait in self._waits.values() if wait.reason), None)

    def listed(self) -> list[PlacementWait]:
        """Those whose reason is known, by their time of arrival."""
        return [wait for wait in self._waits.values() if wait.reason]
