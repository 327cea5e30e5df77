"""What follows from an exception in a domain with a sentinel: the domain is closed, the culprit is looked for.

The program acts by itself (native/sentinel); this only takes its reports.  Prose: docs/sentinel.md.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.fault import Observation
from mpsd.model.fault_signs import CONTAINED_NS
from mpsd.model.process import ProcessId
from mpsd.sentinel.messages import SentinelKind, SentinelReport, SentinelStep
from mpsd.sentinel.rules.blame import containment_failed, exception_seen, judge_clients

log = structlog.get_logger()
_LOOK_SECONDS = 1.0  # a client that could not be looked at in this time may be hostile


class Inquiry(Struct, eq=False):
    """The search for the culprit of one exception.  clients: those of the domain then.  knows_all: those are all; a restarted
    mpsd learns of them one by one."""

    fault: SentinelReport
    clients: set[ProcessId]
    knows_all: bool
    holds: dict[ProcessId, SentinelReport] = field(default_factory=dict)  # the looks at them


class Containment(Struct):
    """Guards that each exception is one fault, and that its domain takes no client afterwards.  A second one ends it.

    see: takes observations.  is_told: whether an earlier mpsd saw a fault in the domain then.
    drain_seconds: 0: clients may stay for ever.
    """

    domain: Domain
    gpu: str
    drain_seconds: float
    see: Callable[[Observation], None]
    is_told: Callable[[str, int], bool]
    _began_ns: int = 0
    _inquiries: list[Inquiry] = field(default_factory=list)  # those without a verdict

    def hear(self, report: SentinelReport, clients: set[ProcessId], spawn: Callable[..., None]) -> None:
        match report.kind:
            case SentinelKind.FAULT:
                if not self._began_ns:
                    self._close(report)
                self._began_ns = report.time_ns
                if not self.is_told(self.domain.name, report.time_ns):  # else an earlier mpsd has judged it
                    self.see(exception_seen(report, self.domain.name, self.gpu))
                    self._inquiries.append(Inquiry(report, clients, bool(clients)))
                    spawn(partial(self._judge_late, self._inquiries[-1]))
            case SentinelKind.HOLDS:
                self._note(report)
            case SentinelKind.FAILED:
                self._fail(report)

    def cut_off(self) -> None:
        """Note that its clients lose their contexts after an exception: those who fail now need not be the culprit."""
        self._fail(SentinelReport(SentinelKind.FAILED, time_ns=time.monotonic_ns(), count=SentinelStep.CUT_OFF))

    def _fail(self, report: SentinelReport) -> None:
        """Note it as evidence about the exception; an end much later is of no exception, and accuses no client."""
        if self._began_ns and report.time_ns - self._began_ns < CONTAINED_NS:
            self.see(containment_failed(report, self.domain.name, self.gpu))

    def _close(self, report: SentinelReport) -> None:
        since = time.time() - (time.monotonic_ns() - report.time_ns) / 1e9  # a restarted mpsd gets the report late
        ends_at = since + self.drain_seconds if self.drain_seconds else math.inf
        if self.domain.state is DomainState.CONTAINED:
            ends_at = time.time() + self.domain.ends_by - trio.current_time()  # as it was announced
        why = "an SM exception was contained; it takes no new client"
        if ends_at < math.inf:
            clock = time.strftime("%H:%M:%S", time.localtime(ends_at))
            why += f", and its clients are ended at {clock} (sentinel.drain_seconds)"
        log.error("domain.contained", domain=self.domain.name, gpu=self.gpu, pc=report.pc, sms=report.count, why=why)
        self.domain.contain(why, trio.current_time() + ends_at - time.time())

    def _note(self, report: SentinelReport) -> None:
        """Note a look at a client for the exceptions at its PC; it can come after a later exception at another one."""
        for inquiry in [each for each in self._inquiries if each.fault.pc == report.pc]:
            known = next((each for each in inquiry.clients if each.pid == report.pid), None)
            if (process := known or processes.find_of(report.pid, report.time_ns)) is not None:
                inquiry.clients.add(process)  # the next mpsd learns its clients in this way
                inquiry.holds[process] = report
                is_found = any(each.is_culprit for each in inquiry.holds.values())  # else it may be named to the sentinel late
                if is_found and inquiry.knows_all and inquiry.holds.keys() >= inquiry.clients:
                    self._judge(inquiry)

    async def _judge_late(self, inquiry: Inquiry) -> None:
        await trio.sleep(_LOOK_SECONDS)
        if inquiry in self._inquiries:
            self._judge(inquiry)

    def _judge(self, inquiry: Inquiry) -> None:
        self._inquiries.remove(inquiry)
        for seen in judge_clients(inquiry.fault, inquiry.holds, tuple(inquiry.clients), self.domain.name, self.gpu):
            self.see(seen)
