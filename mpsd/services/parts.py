"""The parts of the daemon that services use, and that are not of services themselves."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct, field

from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.processes import ticks_at
from mpsd.model.process import ProcessId
from mpsd.notify import Outbox


class ServiceParts(Struct, frozen=True):
    """What services use of the rest of the daemon.

    domain_of: where a process has its contexts; empty: not known.  fault_since: of a domain in FAULT, trio time.  is_contained:
    whether an exception was contained in a domain.  gpus_of: of a domain; empty: not known.  end: ends a process, its GPU work
    first; raises MpsdError.  is_drained: whether a GPU has to be reset.  clock: seconds since the epoch.  ticks: after boot.
    """

    domain_of: Callable[[ProcessId], str]
    fault_since: Callable[[str], float | None]
    is_contained: Callable[[str], bool]
    gpus_of: Callable[[str], tuple[str, ...]]
    end: Callable[[ProcessId, int | None], Awaitable[object]]
    publish: Callable[[str, Mapping[str, Any]], None]
    outbox: Outbox = field(default_factory=Outbox)
    is_drained: Callable[[str], bool] = lambda gpu: False
    clock: Callable[[], float] = time.time
    clock_ns: Callable[[], int] = time.monotonic_ns
    ticks: Callable[[], int] = ticks_at
    ranges: UidRanges = NO_RANGES  # uids that count as one user
