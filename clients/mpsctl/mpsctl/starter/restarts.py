"""When one that has ended is replaced: at once, and ever later where they end before they were of any use.  Pure."""

from dataclasses import dataclass

EARLY_SECONDS = 30.0
MOST_EARLY = 10  # in a row; then nobody is started any more
_LONGEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """early: how many in a row ended early.  not_before: when the next one may be started."""

    early: int = 0
    not_before: float = 0.0

    @property
    def has_given_up(self) -> bool:
        return self.early >= MOST_EARLY


def ended(before: Restarts, lived_seconds: float, was_ready: bool, at: float) -> Restarts:
    """One has, unasked.  One that was ready says nothing of how the next one will begin: a fault may have ended it."""
    if lived_seconds >= EARLY_SECONDS:
        return Restarts()
    if was_ready:
        return before
    early = before.early + 1
    return Restarts(early, at + (0.0 if early == 1 else min(_LONGEST_SECONDS, 2.0 ** (early - 2))))
