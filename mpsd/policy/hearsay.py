"""What a line of a vendor's log is worth: who reaches the log can write any, so that one is confirmed before it has an effect.

| a line says | what it does by itself |
|---|---|
| a server faults | newcomers go elsewhere for LINE_SECONDS, once in LINE_PAUSE_SECONDS |
| a client of a fault | nothing |

What confirms it: `get_server_status` says FAULT; the kernel log or NVML has an Xid that ends servers, or UVM's events have a
fatal fault, of the same domain.  Core dumps, which their authors can make up, and reports of clients confirm nothing.

Confirmed, it is evidence of the fault (fusion.py); else it is dropped after CONFIRM_NS.  Pure; times are given.
Prose: docs/domains.md, "How a fault is noticed".
"""

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from mpsd.fault import Observation, Source
from mpsd.policy.verdict import is_proof
from mpsd.policy.xids import ENDS_SERVER

LINE_SECONDS = 2.0  # by then the vendor's server has said FAULT when asked, or it was a false alarm
LINE_PAUSE_SECONDS = 20.0
CONFIRM_NS = 2_000_000_000
_MOST_LINES = 64  # of one domain that wait for a confirmation: of one fault there are as many as it has clients


_KERNELS_WORD = frozenset({Source.KERNEL_LOG, Source.NVML, Source.UVM_EVENTS, Source.KMOD})


def confirms_fault(seen: Observation) -> bool:
    """The kernel says that the servers of a domain have ended, or are about to."""
    is_fatal = is_proof(seen) and not seen.is_contained
    return seen.source in _KERNELS_WORD and bool(seen.domain) and (is_fatal or seen.xid in ENDS_SERVER)


@dataclass(slots=True)
class LineAlarm:
    """Guards that lines alone keep newcomers out for LINE_SECONDS of LINE_PAUSE_SECONDS at most."""

    again_at: float = -math.inf

    def until(self, now: float) -> float | None:
        """Until when newcomers go elsewhere because of a line; None: there was one a short time ago."""
        if now < self.again_at:
            return None
        self.again_at = now + LINE_PAUSE_SECONDS
        return now + LINE_SECONDS


@dataclass(slots=True)
class Unconfirmed:
    """Guards that a line about a fault is passed on only with something that says the same and cannot be written by others."""

    _lines: dict[str, deque[Observation]] = field(default_factory=dict)  # by domain
    _confirmed_ns: dict[str, int] = field(default_factory=dict)  # when something last said that the domain faults

    def hear(self, line: Observation) -> bool:
        """Whether it is confirmed already.  If not, it is kept until something confirms it, or for CONFIRM_NS."""
        if line.domain in self._confirmed_ns and line.seen_ns - self._confirmed_ns[line.domain] <= CONFIRM_NS:
            return True
        self._lines.setdefault(line.domain, deque(maxlen=_MOST_LINES)).append(line)
        return False

    def confirm(self, domain: str, now_ns: int) -> tuple[Observation, ...]:
        """Something else says that the domain faults: the lines that said so before, as of now.

        Of now, because a line that was made up may have come before the fault, and arenas go to others by its time."""
        self._confirmed_ns[domain] = now_ns
        kept = self._lines.pop(domain, ())
        return tuple(replace(line, seen_ns=now_ns) for line in kept if now_ns - line.seen_ns <= CONFIRM_NS)

    def drop_late(self, now_ns: int) -> dict[str, int]:
        """Domains of which lines were not confirmed in time, and how many."""
        dropped = {}
        for domain, lines in list(self._lines.items()):
            late = sum(now_ns - line.seen_ns > CONFIRM_NS for line in lines)
            for _ in range(late):
                lines.popleft()
            if late:
                dropped[domain] = late
            if not lines:
                del self._lines[domain]
        return dropped

    def next_drop_ns(self) -> int | None:
        return min((lines[0].seen_ns + CONFIRM_NS + 1 for lines in self._lines.values()), default=None)

    def forget_but(self, domains: Collection[str]) -> None:
        """Of domains that are gone nothing is kept."""
        for table in (self._lines, self._confirmed_ns):
            for gone in [name for name in table if name not in domains]:
                del table[gone]
