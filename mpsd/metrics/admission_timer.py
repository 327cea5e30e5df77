"""Measure how long clients wait for their grant, between the relay and the lease book."""

import time
from collections.abc import Callable

from msgspec import Struct

from mpsd.metrics.counters import Histogram
from mpsd.model.lease import Grant, Identity
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.assignment import Admission


class TimedAdmission(Struct, frozen=True):
    """Counts admitted clients; refusals and given up waits are counted elsewhere."""

    admission: Admission
    histogram: Histogram

    def grant_of(self, process: ProcessId) -> Grant | None:
        return self.admission.grant_of(process)

    def identity_of(self, process: ProcessId) -> Identity | None:
        return self.admission.identity_of(process)

    def leave(self, process: ProcessId) -> None:
        self.admission.leave(process)

    async def admit(self, process: ProcessId | None, credentials: Credentials, told: Callable[[str], None]) -> Grant:
        began = time.monotonic()
        grant = await self.admission.admit(process, credentials, told)
        self.histogram.observe(time.monotonic() - began)
        return grant
