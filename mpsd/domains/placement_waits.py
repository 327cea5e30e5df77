"""List the admitted clients that wait for a fault domain: since when, and why."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from mpsd.domains.rules.placement import Wait
from mpsd.model.process import ProcessId


class Reason(Struct, eq=False):
    """The reason of a wait, shared by all clients that wait for the same.

    machine_since: since when the machine has been the cause, rather than something that the user did or can end.
    """

    text: str = ""
    machine_since: float | None = None

    def change(self, wait: Wait) -> bool:
        """Take the reason of now; return whether its text is another one."""
        if wait.is_own:
            self.machine_since = None
        elif self.machine_since is None:
            self.machine_since = time.monotonic()
        is_new, self.text = wait.reason != self.text, wait.reason
        return is_new


class PlacementWait(Struct):
    """One process that waits. connections: the number of its waiting connections."""

    process: ProcessId
    uid: int
    why: Reason = field(default_factory=Reason)
    since: float = field(default_factory=time.monotonic)
    connections: int = 0

    @property
    def reason(self) -> str:
        return self.why.text

    @property
    def waited_seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def machine_seconds(self) -> float:
        """For how long it has waited because of the machine."""
        return 0.0 if self.why.machine_since is None else time.monotonic() - max(self.since, self.why.machine_since)


class PlacementWaits:
    """Guards that a process is listed exactly while a connection waits, and once among those with the same reason."""

    def __init__(self) -> None:
        self._waits: dict[ProcessId, PlacementWait] = {}
        self._by_reason: dict[Reason, dict[ProcessId, PlacementWait]] = {}  # each in order of arrival

    @contextmanager
    def begin(self, process: ProcessId | None, uid: int) -> Iterator[None]:
        """List the process while one of its connections waits; None: a process that mpsd cannot see and does not list."""
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
                self._forget_reason(wait)
                del self._waits[process]

    def explain(self, process: ProcessId | None, why: Reason) -> None:
        """Note the reason for which the process waits now; it may change later."""
        if process is not None and (wait := self._waits.get(process)) is not None and wait.why is not why:
            self._forget_reason(wait)
            wait.why = why
            self._by_reason.setdefault(why, {})[process] = wait

    def _forget_reason(self, wait: PlacementWait) -> None:
        if alike := self._by_reason.get(wait.why):
            alike.pop(wait.process, None)
            if not alike:
                del self._by_reason[wait.why]

    def because_of_the_machine(self) -> tuple[int, PlacementWait | None]:
        """Count the waits that the machine causes; return the number and the longest wait."""
        found = [alike for why, alike in self._by_reason.items() if why.machine_since is not None]
        longest = max((next(iter(alike.values())) for alike in found), key=lambda wait: wait.machine_seconds, default=None)
        return sum(map(len, found)), longest

    def listed(self) -> list[PlacementWait]:
        """Return the waits with a known reason, by their time of arrival."""
        return [wait for wait in self._waits.values() if wait.reason]
