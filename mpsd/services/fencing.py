"""Fencing the writer of a service: through a fault, through its own end, or by ending it.

| state | action | fenced when |
|---|---|---|
| its domain's contexts are torn down (services/rules/fault_fence.py) | SIGKILL, which harms no client there | at once |
| its MPS server has ended | SIGKILL, likewise | mpsd holds none of its GPU resources any more (vault/fencing.py) |
| it has ended | none | the same |
| a fault, which may still run, or of the GPU itself | wait `fence_seconds`: proof comes soon | as above |
| it reported that it cannot continue | wait a second for it to release the arena | as below |
| else: it is silent, or too late | end its GPU work, then the process (stop/stopper.py) | as above |

While a standby waits to take over, mpsd holds none of the writer's GPU resources beyond its end.
Prose: docs/services.md, "Fencing".
"""

import structlog
import trio

from mpsd.errors import MpsdError
from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, MemberState, Phase
from mpsd.services.coordinator import Coordinator
from mpsd.services.guard import guarded
from mpsd.services.members import Instance, ServiceRecord
from mpsd.services.rules.promotion_types import Fenced

log = structlog.get_logger()
_LETTING_GO_SECONDS = 1.0


class Fencing:
    """Guards that only one task ends a writer, and that it is reported as fenced only when it is."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def fence(self, record: ServiceRecord, writer: ProcessId) -> None:
        """Fence the writer; call it again when more is known."""
        coordinator, instance = self._coordinator, record.instances.get(writer)
        if record.arena.writer != writer:
            coordinator.tell(record, Fenced(writer))
            return
        if self._is_torn_down(record, writer):
            return
        if instance is None or instance.is_gone or self._nursery is None or record.stopping == writer:
            return  # the vault reports when mpsd holds nothing of the process any more
        if instance.is_orphan:
            coordinator.process_watch.kill(writer)
            return
        record.stopping = writer
        self._nursery.start_soon(self._end, record, writer, self._patience(record, writer))

    def _is_torn_down(self, record: ServiceRecord, writer: ProcessId) -> bool:
        """Return whether a fault has torn its contexts down, or will in a moment; then `fence` is called again."""
        instance = record.instances.get(writer)
        seconds = None if instance is None or not instance.domain else self._settles_in(instance)
        if seconds is None:
            return False
        if seconds > 0:
            if self._nursery is not None:
                self._nursery.start_soon(self._later, record, writer, seconds)
            return True
        if not self._coordinator.process_watch.kill(writer):
            return False
        self._coordinator.fenced(record, writer)
        return True

    def _settles_in(self, instance: Instance) -> float | None:
        """Return the seconds until no work of the process can write; None: no evidence shows that."""
        coordinator, domain = self._coordinator, instance.domain
        has_gpu_failed = coordinator.evidence.has_gpu_failed(domain, coordinator.parts.gpus_of(domain), instance.since_ns)
        since_ns = max(instance.since_ns, instance.placed_ns)
        at_ns = coordinator.evidence.fenced_at_ns(domain, since_ns, must_tell_class=has_gpu_failed)
        if at_ns is not None:
            return (at_ns - coordinator.parts.clock_ns()) / 1e9
        since = None if has_gpu_failed else coordinator.parts.fault_since(domain)
        settle = coordinator.settings.settle
        return None if since is None else since + max(settle.sm, settle.mmu) - trio.current_time()

    async def _later(self, record: ServiceRecord, writer: ProcessId, seconds: float) -> None:
        await trio.sleep(seconds)
        with guarded(record, pid=writer.pid):
            if self._is_due(record, writer):
                self.fence(record, writer)

    def _patience(self, record: ServiceRecord, writer: ProcessId) -> float:
        member = record.service.member(writer)
        if member is not None and member.standing is MemberState.FAULTED:
            return self._coordinator.settings.limits.fence_seconds
        has_failed = record.handover is not None and record.handover.cause is Cause.FAILED
        return _LETTING_GO_SECONDS if has_failed else 0.0

    async def _end(self, record: ServiceRecord, writer: ProcessId, patience: float) -> None:
        """End the writer after `patience` seconds.  An error ends only this attempt: `fence` is called again."""
        with guarded(record, pid=writer.pid):
            try:
                await trio.sleep(patience)
                if self._is_due(record, writer) and not record.instances[writer].is_gone:
                    await self._coordinator.parts.end(writer, self._coordinator.process_watch.uid_of(writer))
            except MpsdError as exc:
                log.error("service.not_ended", service=record.arena.name, pid=writer.pid, why=str(exc))
            finally:
                if record.stopping == writer:
                    record.stopping = None

    def _is_due(self, record: ServiceRecord, writer: ProcessId) -> bool:
        return record.service.writer == writer and record.service.phase is Phase.FENCING and writer in record.instances
