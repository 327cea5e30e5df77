"""What was seen of faults in each domain: from when on nothing of it writes any more."""

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mpsd.fault import Observation
from mpsd.policy.fault_fence import Settle, fences_at_ns, is_of_gpu_itself, tells_class

_MOST_DOMAINS = 256
_MOST_OF_DOMAIN = 64


class Evidence:
    """Guards that what was seen of a fault counts for those alone who were there before it, and that little is kept."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[int, int, bool]]] = {}  # when; from when on nothing writes; it told the class
        self._of_gpu: dict[str, int] = {}  # by GPU and by domain, empty: not known: when it last failed itself

    def take(self, seen: Observation, settle: Settle, heard_ns: int) -> None:
        """heard_ns: now.  From then on it settles: stamps in the kernel's log are of a clock that may lag behind."""
        if is_of_gpu_itself(seen):
            for name in {seen.gpu, seen.domain} - {""} or {""}:
                self._of_gpu[name] = max(seen.seen_ns, self._of_gpu.pop(name, 0))
            _shorten(self._of_gpu)
        at_ns = fences_at_ns(replace(seen, seen_ns=max(seen.seen_ns, heard_ns)), settle)
        if at_ns is not None:
            of_domain = self._seen.setdefault(seen.domain, deque(maxlen=_MOST_OF_DOMAIN))
            of_domain.append((seen.seen_ns, at_ns, tells_class(seen)))
            _shorten(self._seen)

    def fenced_at_ns(self, domain: str, since_ns: int, must_tell_class: bool) -> int | None:
        """Of a process that was there since; None: nothing was seen that says so."""
        seen = self._seen.get(domain, ())
        found = (at for when, at, tells in seen if when >= since_ns and (tells or not must_tell_class))
        return min(found, default=None)

    def has_gpu_failed(self, domain: str, gpus: Collection[str], since_ns: int) -> bool:
        """A fault of the GPU itself was seen since.  gpus: of the domain; of MIG devices the kernel names the whole GPU."""
        are_whole = bool(gpus) and all(gpu.startswith("GPU-") for gpu in gpus)
        return any(
            when >= since_ns and (name in ("", domain, *gpus) or (name.startswith("GPU-") and not are_whole))
            for name, when in self._of_gpu.items()
        )


def _shorten(by_name: dict[str, Any]) -> None:
    while len(by_name) > _MOST_DOMAINS:
        del by_name[next(iter(by_name))]
