"""When to replace a member that has ended: at once, with a growing delay while members end early.  Pure."""

from collections.abc import Set
from dataclasses import dataclass

from mpsd_client import values

EARLY_SECONDS = 30.0
MOST_EARLY = 10  # consecutive early ends; then the starter starts no more members
_LONGEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """early: the number of consecutive early ends.  not_before: when the next member may be started."""

    early: int = 0
    not_before: float = 0.0

    @property
    def has_given_up(self) -> bool:
        return self.early >= MOST_EARLY


def fresh() -> dict[bool, Restarts]:
    """Return the state of a starter that has started no child: of its members (False), and of its replicas (True), which must
    not keep each other from being started."""
    return {False: Restarts(), True: Restarts()}


def ended(before: Restarts, lived_seconds: float, was_ready: bool, at: float) -> Restarts:
    """Return the new state after a member ended unasked.  An early end of a member that had become ready does not count: a
    fault may have ended it, and the next one may start well."""
    if lived_seconds >= EARLY_SECONDS:
        return Restarts()
    if was_ready:
        return before
    early = before.early + 1
    return Restarts(early, at + (0.0 if early == 1 else min(_LONGEST_SECONDS, 2.0 ** (early - 2))))


def has_done_its_work(service: values.Service | None, pids: Set[int], *, has_served: bool) -> bool:
    """Return whether a member that has ended with status 0 was the active, and did not hand over, nor to another GPU.

    pids: those that mpsd may know it by.  has_served: as was seen so far."""
    if service is None:
        return has_served
    last, move = service.last, service.move
    if move is not None and move.state in ("handing", "done") and move.from_pid in pids:
        return False  # the members that a service leaves behind are dismissed
    if last is None:
        return has_served
    has_handed_over = last.cause in ("asked", "contained") and last.from_pid in pids
    return not has_handed_over and (has_served or bool(pids & {last.from_pid, last.to_pid}))
