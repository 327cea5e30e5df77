"""XidGate: what the kernel log says waits here until NVML or the domain's server says it too (policy/xid_confirmation.py)."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import structlog
import trio

from mpsd.domains.pool import Pool
from mpsd.fault import Observation, Source
from mpsd.model import DomainState
from mpsd.policy.belonging import is_elsewhere
from mpsd.policy.xid_confirmation import UnconfirmedXids, is_grave, is_of_gpu
from mpsd.policy.xids import ENDS_SERVER

log = structlog.get_logger()
_EVENT_SECONDS = 0.2  # by then NVML's event has come: 0 to 1 ms after the record (measured)
_ANSWER_SECONDS = 8.0  # of NVML about a GPU; later it hangs


class XidGate:
    """Guards that an Xid of the kernel log has no effect on its own.

    see: takes an observation.  cannot_reach: asks NVML about a GPU, and blocks; whether it failed.
    """

    def __init__(
        self,
        pool: Pool,
        see: Callable[[Observation], None],
        cannot_reach: Callable[[str], bool],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._pool, self._pass_on, self._cannot_reach, self._clock = pool, see, cannot_reach, clock
        self._records = UnconfirmedXids()
        self._asked: dict[str, trio.CapacityLimiter] = {}  # by GPU: a call that hangs keeps its place
        self._to_ask, self._doubted = trio.open_memory_channel[str](math.inf)  # each GPU of the machine once at most
        self._asking: set[str] = set()
        self._news = trio.Event()

    def see(self, seen: Observation) -> None:
        """From any source, in the trio thread."""
        if seen.source is Source.KERNEL_LOG:
            self._hear(seen)
            return
        if seen.source is Source.NVML and seen.xid is not None:
            self._pass_all(self._records.hear_nvml(seen.gpu, seen.xid, self._clock()))
        self._pass_on(seen)

    @property
    def is_asking(self) -> bool:
        """NVML has yet to answer about a GPU."""
        return bool(self._asking)

    async def run(self) -> None:
        """Lives as long as mpsd."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drop)
            nursery.start_soon(self._follow_servers)
            async for gpu in self._doubted:
                nursery.start_soon(self._ask, gpu)

    def _hear(self, record: Observation) -> None:
        domain = self._pool.domains.get(record.domain)
        if domain is None or is_elsewhere(record, domain.gpus):
            domain, record = None, replace(record, domain="")
        if self._records.hear(record, self._clock()):
            self._pass_on(record)
            return
        self._news.set()
        if is_of_gpu(record):
            self._doubt(record)
        elif domain is not None and domain.state is DomainState.FAULT:
            self._pass_all(self._records.hear_server(domain.name))
        elif domain is not None and record.xid in ENDS_SERVER:
            domain.alarm()
            self._pool.notify()

    def _doubt(self, record: Observation) -> None:
        if record.gpu and is_grave(record) and record.gpu not in self._asking:
            self._asking.add(record.gpu)
            self._to_ask.send_nowait(record.gpu)

    async def _ask(self, gpu: str) -> None:
        """Where NVML has no event: it fails on a GPU that is lost, or hangs, and both confirm."""
        try:
            await trio.sleep(_EVENT_SECONDS)
            if not self._records.waits_for_gpu(gpu):
                return
            is_lost = True
            limiter = self._asked.setdefault(gpu, trio.CapacityLimiter(1))
            with trio.move_on_after(_ANSWER_SECONDS):
                is_lost = await trio.to_thread.run_sync(self._cannot_reach, gpu, abandon_on_cancel=True, limiter=limiter)
            if is_lost:
                self._pass_all(self._records.hear_lost(gpu))
        except RuntimeError as exc:  # there is no thread to be had
            log.error("fault.not_asked", gpu=gpu, why=str(exc))
        finally:
            self._asking.discard(gpu)

    async def _follow_servers(self) -> None:
        while True:
            for name, domain in list(self._pool.domains.items()):
                if domain.state is DomainState.FAULT:
                    self._pass_all(self._records.hear_server(name))
            await self._pool.changed()

    async def _drop(self) -> None:
        while True:
            for late in self._records.drop_late(self._clock()):
                log.warning("fault.unconfirmed", domain=late.domain, gpu=late.gpu, xid=late.xid, lines=1)
            self._news = trio.Event()
            due_ns = self._records.next_drop_ns()
            with trio.move_on_after(math.inf if due_ns is None else max(0.01, (due_ns - self._clock()) / 1e9)):
                await self._news.wait()

    def _pass_all(self, records: tuple[Observation, ...]) -> None:
        for each in records:
            self._pass_on(each)
