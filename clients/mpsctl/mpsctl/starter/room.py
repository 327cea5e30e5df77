"""Room for one member more than are wanted, in a rolling change: what is known of it, until there may be more.  No clock."""

from dataclasses import dataclass
from math import inf

from mpsctl.starter.plan import Make

AGAIN_SECONDS = 30.0  # others may have given something back
FREED_SECONDS = 2.0  # until mpsd has seen the end of one that has ended here
_FULL_PERCENT = 100.0  # what is reserved where neither a share nor memory is named


@dataclass(slots=True)
class Room:
    """Guards that what was refused is asked for again when there may be more, and that a reason is said once.

    may_surge: there may be room for one more.  may_make_way: there may be for a successor, once its predecessor has ended.
    why: there was none for one more."""

    may_surge: bool = True
    may_make_way: bool = True
    why: str = ""
    _freed_at: float = -inf
    _again_at: float = inf
    _said: str = ""

    def look(self, now: float) -> None:
        if now >= self._again_at:
            self.may_surge, self.may_make_way, self._again_at = True, True, inf

    def free(self, now: float) -> None:
        """Somebody has ended."""
        self._freed_at = self._again_at = now
        self.look(now)

    def refuse(self, now: float, why: str) -> None:
        """One more."""
        self.may_surge, self.why = False, why
        if now < self._freed_at + FREED_SECONDS:
            self.may_make_way, self._again_at = False, self._freed_at + FREED_SECONDS

    def refuse_way(self, now: float) -> None:
        """A successor, even then."""
        self.may_make_way, self._again_at = False, now + AGAIN_SECONDS

    def is_news(self, why: str) -> bool:
        before, self._said = self._said, why
        return why != before


def lacking(old: Make, new: Make) -> Make | None:
    """What a successor needs besides what its predecessor gives back.  None: nothing."""
    percent = _reserved_percent(new) - _reserved_percent(old)
    size = (new.memory_bytes or 0) - (old.memory_bytes or 0)
    more = Make(percent if percent > 0 else None, max(0, size) or None)
    return more if more.sm_percent or more.memory_bytes else None


def _reserved_percent(make: Make) -> float:
    """What mpsd reserves for it: no SMs where memory alone is named."""
    return make.sm_percent or (0.0 if make.memory_bytes else _FULL_PERCENT)
