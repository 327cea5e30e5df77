"""What is known about GPU room for one extra member in a rolling change, and when to ask again.  No clock."""

from dataclasses import dataclass
from math import inf

from mpsctl.starter.plan import Make

AGAIN_SECONDS = 30.0  # until the next attempt, since other clients may have freed room
FREED_SECONDS = 2.0  # until mpsd has seen the end of a child that has ended here
_FULL_PERCENT = 100.0  # mpsd reserves all SMs if neither a share nor memory is named


@dataclass(slots=True)
class Room:
    """Remembers refusals until room may have been freed, and lets each reason be reported once.

    may_surge: one extra member may fit.  may_make_way: a successor may fit once its predecessor has ended.  why: why the last
    extra member did not fit."""

    may_surge: bool = True
    may_make_way: bool = True
    why: str = ""
    freed_at: float = -inf  # when the last child ended
    _again_at: float = inf
    _said: str = ""

    def look(self, now: float) -> None:
        if now >= self._again_at:
            self.may_surge, self.may_make_way, self._again_at = True, True, inf

    def free(self, now: float) -> None:
        """Record that a child has ended, which frees room."""
        self.freed_at = self._again_at = now
        self.look(now)

    def refuse(self, now: float, why: str) -> None:
        """Record that mpsd refused an extra member."""
        self.may_surge, self.why = False, why
        if now < self.freed_at + FREED_SECONDS:
            self.may_make_way, self._again_at = False, self.freed_at + FREED_SECONDS

    def refuse_way(self, now: float) -> None:
        """Record that mpsd would refuse a successor even after the end of its predecessor."""
        self.may_make_way, self._again_at = False, now + AGAIN_SECONDS

    def is_news(self, why: str) -> bool:
        before, self._said = self._said, why
        return why != before


def lacking(old: Make, new: Make) -> Make | None:
    """Return what a successor needs beyond its predecessor's reservation; None if nothing."""
    percent = _reserved_percent(new) - _reserved_percent(old)
    size = (new.memory_bytes or 0) - (old.memory_bytes or 0)
    more = Make(percent if percent > 0 else None, max(0, size) or None)
    return more if more.sm_percent or more.memory_bytes else None


def _reserved_percent(make: Make) -> float:
    """Return the percentage of SMs that mpsd reserves for a member; 0 if only memory is named."""
    return make.sm_percent or (0.0 if make.memory_bytes else _FULL_PERCENT)
