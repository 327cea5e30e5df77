"""What is done about an incident: policy/response.py says what, this does it, once, and notes what came of it."""

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio

from mpsd import processes
from mpsd.api.services import Stopper
from mpsd.domains.pool import Pool
from mpsd.fault import Incident
from mpsd.faults.desk import FaultDesk
from mpsd.model import DomainState, ProcessId
from mpsd.policy.response import Act, Drain, End, plan
from mpsd.stop import Asker, Manner, Target, TargetKind

log = structlog.get_logger()
_OPERATOR = Asker(None, 0)
_MOST = 256  # incidents at once that something is done about


class Reactions:
    """Guards that each act is done once for an incident.  release: lets go of what is held for a process."""

    def __init__(
        self,
        desk: FaultDesk,
        pool: Pool,
        stopper: Stopper,
        publish: Callable[[str, Mapping[str, Any]], None],
        release: Callable[[ProcessId], None],
    ) -> None:
        self._desk, self._pool, self._stopper = desk, pool, stopper
        self._publish, self._release = publish, release
        self._done: dict[int, set[Act]] = {}
        self._send, self._receive = trio.open_memory_channel[tuple[Incident, Act]](_MOST)

    def consider(self, incident: Incident) -> None:
        """At each revision of it."""
        done = self._done.setdefault(incident.number, set())
        is_alive = incident.culprit is not None and processes.is_alive(incident.culprit)
        for act in plan(incident, self._desk.settings, frozenset(done), is_alive):
            done.add(act)
            try:
                self._send.send_nowait((incident, act))
            except trio.WouldBlock:
                log.error("fault.not_answered", number=incident.number, act=repr(act), why=f"{_MOST} others come first")
        while len(self._done) > _MOST:
            del self._done[next(iter(self._done))]

    async def run(self) -> None:
        """Lives as long as mpsd."""
        async with trio.open_nursery() as nursery:
            async for incident, act in self._receive:
                nursery.start_soon(self._do, incident, act)

    async def _do(self, incident: Incident, act: Act) -> None:
        match act:
            case End(process):
                await self._end(incident, process)
            case Drain(gpu):
                self._drain(incident, gpu)

    def _drain(self, incident: Incident, gpu: str) -> None:
        why = f"after Xid {', '.join(map(str, incident.xids))} (fault {incident.number}); `mpsctl pardon {gpu}` ends it"
        self._pool.drain_gpu(gpu, why)
        log.critical("gpu.drained", gpu=gpu, number=incident.number, xids=list(incident.xids))
        self._publish("gpu.drained", {"gpu": gpu, "number": incident.number, "xids": list(incident.xids)})
        self._desk.note(incident, "the GPU takes no new clients: it has to be reset or looked at")

    async def _end(self, incident: Incident, process: ProcessId) -> None:
        """After a while in which it can put its own things in order.  Where its domain is in FAULT it has no GPU work left, and
        a signal harms nobody; elsewhere its work is ended first."""
        pidfd = processes.open_pidfd(process)
        if pidfd is None:
            return
        try:
            seconds = self._desk.settings.culprit_seconds
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_readable(pidfd)
                return  # it has ended by itself
            domain = self._pool.domains.get(incident.domain)
            if domain is not None and domain.state is DomainState.READY and process in domain.connected:
                target = Target(TargetKind.PID, str(process.pid), process.start_time)
                report = await self._stopper.stop(target, Manner(), _OPERATOR)
                told = "; ".join(each.why or f"ended by {', '.join(each.steps)}" for each in report.stopped)
            else:
                self._release(process)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                told = "ended by SIGKILL"
            self._desk.note(incident, f"the culprit, pid {process.pid}, was {told}, {seconds:g} s after it was known")
        except (OSError, ProcessLookupError) as exc:
            self._desk.note(incident, f"the culprit, pid {process.pid}, could not be ended: {exc}")
        finally:
            os.close(pidfd)
