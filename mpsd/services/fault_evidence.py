"""Observations of faults in each domain: from which time on no work in it can write."""

from collections import deque
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from mpsd.model.fault import Observation
from mpsd.services.rules.fault_fence import Settle, fences_at_ns, is_of_gpu_itself, tells_class

_MOST_DOMAINS = 256
_MOST_OF_DOMAIN = 64


class Evidence:
    """Guards that a fault counts only for processes that were present before it, and that its memory is bounded."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[int, int, bool]]] = {}  # time seen; end of writes; shows the class?
        self._of_gpu: dict[str, int] = {}  # by GPU and by domain ("": not known): the last failure of the GPU itself

    def take(self, seen: Observation, settle: Settle, heard_ns: int) -> None:
        """Record an observation.  heard_ns: now.

        The settling time counts from now, if that is later: stamps in the kernel's log are of a clock that may lag behind.
        """
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
        """Return when a process that was present since `since_ns` could write no longer; None: no observation shows it."""
        seen = self._seen.get(domain, ())
        found = (at for when, at, tells in seen if when >= since_ns and (tells or not must_tell_class))
        return min(found, default=None)

    def has_gpu_failed(self, domain: str, gpus: Collection[str], since_ns: int) -> bool:
        """Return whether a fault of the GPU itself was seen since.

        gpus: of the domain.  For MIG devices the kernel names the whole GPU.
        """
        are_whole = bool(gpus) and all(gpu.startswith("GPU-") for gpu in gpus)
        return any(
            when >= since_ns and (name in ("", domain, *gpus) or (name.startswith("GPU-") and not are_whole))
            for name, when in self._of_gpu.items()
        )


def _shorten(by_name: dict[str, Any]) -> None:
    while len(by_name) > _MOST_DOMAINS:
        del by_name[next(iter(by_name))]
