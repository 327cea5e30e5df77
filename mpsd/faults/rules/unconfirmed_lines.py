"""Decide how far to trust a line of a vendor's log: every user of the log can write one, so it needs a confirmation.

| line | effect before confirmation |
|---|---|
| a server faults | newcomers go to other domains for LINE_SECONDS, once in LINE_PAUSE_SECONDS |
| a client's line about a fault | none |

Confirmations: `get_server_status` answers FAULT; the kernel log or NVML has an Xid that ends servers, or UVM's events have a
fatal fault, of the same domain.  Core dumps, which their authors can forge, and reports of clients confirm nothing.

A confirmed line is evidence of the fault (fusion.py); any other is dropped after CONFIRM_NS.  Pure; times are given.
Prose: docs/domains.md, "How a fault is noticed".
"""

from collections import deque
from collections.abc import Collection

from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.faults.rules.verdict import is_proof
from mpsd.model.fault import Observation, Source
from mpsd.model.xid import ENDS_SERVER

CONFIRM_NS = 2_000_000_000
_MOST_LINES = 64  # waiting lines of one domain: a fault writes one for each client
_KERNELS_WORD = frozenset({Source.KERNEL_LOG, Source.NVML, Source.UVM_EVENTS, Source.KMOD})


def confirms_fault(seen: Observation) -> bool:
    """Return whether the kernel reports that the servers of a domain have ended, or are about to."""
    is_fatal = is_proof(seen) or seen.xid in ENDS_SERVER
    return seen.source in _KERNELS_WORD and bool(seen.domain) and is_fatal and not seen.is_contained


class Unconfirmed(Struct):
    """Guards that a line about a fault is passed on only with a confirmation that no user can write."""

    _lines: dict[str, deque[Observation]] = field(default_factory=dict)  # by domain
    _confirmed_ns: dict[str, int] = field(default_factory=dict)  # when the domain's fault was last confirmed

    def hear(self, line: Observation) -> bool:
        """Return whether the line is confirmed already; if not, keep it until it is confirmed, or for CONFIRM_NS."""
        if line.domain in self._confirmed_ns and line.seen_ns - self._confirmed_ns[line.domain] <= CONFIRM_NS:
            return True
        self._lines.setdefault(line.domain, deque(maxlen=_MOST_LINES)).append(line)
        return False

    def confirm(self, domain: str, now_ns: int) -> tuple[Observation, ...]:
        """Confirm the domain's fault; return the lines that reported it before, dated now.

        They are dated now because a forged line may have come before the fault, and the time decides when arenas change hands.
        """
        self._confirmed_ns[domain] = now_ns
        kept = self._lines.pop(domain, ())
        return tuple(replace(line, seen_ns=now_ns) for line in kept if now_ns - line.seen_ns <= CONFIRM_NS)

    def drop_late(self, now_ns: int) -> dict[str, int]:
        """Drop the lines that were not confirmed in time; return their number by domain."""
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
        """Forget the domains that are gone."""
        for table in (self._lines, self._confirmed_ns):
            for gone in [name for name in table if name not in domains]:
                del table[gone]
