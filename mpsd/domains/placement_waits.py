"""List the admitted clients that wait for a fault domain: since when, and why."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mpsd.model import ProcessId


@dataclass(slots=True)
class PlacementWait:
    """One process that waits.  connections: how many of its connections do.

    machine_since: since when the reason has been the machine's, and not what its own user did or may end.
    """

    process: ProcessId
    uid: int
    reason: str = ""
    since: float = field(default_factory=time.monotonic)
    connections: int = 0
    machine_since: float | None = None

    @property
    def waited_seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def machine_seconds(self) -> float:
        return 0.0 if self.machine_since is None else time.monotonic() - self.machine_since


class PlacementWaits:
    """Guards that a process is listed exactly while one of its connections waits."""

    def __init__(self) -> None:
        self._waits: dict[ProcessId, PlacementWait] = {}

    @contextmanager
    def begin(self, process: ProcessId | None, uid: int) -> Iterator[None]:
        """List the process while one of its connections waits; None: a process that mpsd cannot see, and does not list."""
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

    def explain(self, process: ProcessId | None, reason: str, *, is_own: bool) -> None:
        """Note what it waits for now.  is_own: what its own user did or may end."""
        if process is None or (wait := self._waits.get(process)) is None:
            return
        wait.reason = reason
        if is_own:
            wait.machine_since = None
        elif wait.machine_since is None:
            wait.machine_since = time.monotonic()

    def because_of_the_machine(self) -> list[PlacementWait]:
        """Return those whose own user did not cause the wait; the longest such wait comes first."""
        return sorted(
            (wait for wait in self._waits.values() if wait.machine_since is not None),
            key=lambda wait: wait.machine_seconds,
            reverse=True,
        )

    def listed(self) -> list[PlacementWait]:
        """Return the waits with a known reason, by their time of arrival."""
        return [wait for wait in self._waits.values() if wait.reason]
