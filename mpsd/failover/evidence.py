"""What was seen of faults in each domain: from when on nothing of it writes any more."""

from collections import deque

from mpsd.fault import Observation
from mpsd.policy.fault_fence import Settle, fences_at_ns

_MOST_DOMAINS = 256
_MOST_OF_DOMAIN = 64


class Evidence:
    """Guards that what was seen of a fault counts for those alone who were there before it, and that little is kept."""

    def __init__(self, is_multiuser: bool) -> None:
        self._is_multiuser = is_multiuser
        self._seen: dict[str, deque[tuple[int, int]]] = {}  # when it was seen, and from when on nothing writes

    def take(self, seen: Observation, settle: Settle) -> None:
        at_ns = fences_at_ns(seen, settle, self._is_multiuser)
        if at_ns is None:
            return
        self._seen.setdefault(seen.domain, deque(maxlen=_MOST_OF_DOMAIN)).append((seen.seen_ns, at_ns))
        while len(self._seen) > _MOST_DOMAINS:
            del self._seen[next(iter(self._seen))]

    def fenced_at_ns(self, domain: str, since_ns: int) -> int | None:
        """Of a process that was there since; None: nothing was seen that says so."""
        found = (at_ns for seen_ns, at_ns in self._seen.get(domain, ()) if seen_ns >= since_ns)
        return min(found, default=None)
