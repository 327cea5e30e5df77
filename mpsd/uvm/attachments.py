"""Watch the UVM descriptors of all clients: one watch for each, begun by the first connection of a client.

If that is not possible (not root, no tools device, another layout), mpsd logs it once for each reason, and clients run as they
would without it.  Prose: docs/uvm.md.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog
import trio
from msgspec.structs import replace

from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.rules.descriptor_budget import may_take
from mpsd.model.client import UNKNOWN, WatchStatus
from mpsd.model.fault import Observation
from mpsd.model.process import ProcessId
from mpsd.uvm.client_watch import InThread, Watch, WatchParts
from mpsd.uvm.holding import OpenSpaces, find_closed
from mpsd.uvm.status import UvmSettings

log = structlog.get_logger()
_THREADS = 8  # a GPU that keeps its driver waiting must not use up the threads of other tasks
_SWEEP_SECONDS = 2.0
_MOST_REASONS = 64


class Attachments:
    """Guards that each client is attached at most once, and no more than `settings.most` of them.

    New `settings` apply to clients that connect afterwards.
    """

    def __init__(
        self,
        settings: UvmSettings,
        open_spaces: OpenSpaces,
        inspector: Inspector,
        publish_observation: Callable[[Observation], None],
        tell_end: Callable[[ProcessId, str, bool], None] = lambda process, domain, had_context: None,
        in_thread: InThread | None = None,
        ranges: UidRanges = NO_RANGES,
    ) -> None:
        """ranges: whose uids count as one user."""
        self.settings = settings
        self._share_of = ranges.share_of
        self._shares: dict[ProcessId, int] = {}  # the uid whose share each client is of
        self._clients: Counter[int] = Counter()  # by that uid, as the next
        self._held: Counter[int] = Counter()  # descriptors
        self._around = WatchParts(
            open_spaces,
            self._count,
            self._may_take,
            inspector,
            publish_observation,
            in_thread or _threads(trio.CapacityLimiter(_THREADS)),
            in_thread or _threads(trio.CapacityLimiter(_THREADS)),
            self._tell_absent,
            tell_end,
        )
        self._watches: dict[ProcessId, Watch] = {}
        self._early: list[Watch] = []
        self._over: dict[ProcessId, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self._reasons: set[str] = set()
        self._is_full = False

    # -- for the relay and the lists -------------------------------------------------------------------------------------

    def watch(
        self, process: ProcessId, domain: str, gpus: tuple[str, ...], has_company: Callable[[], bool], is_roomy: bool = True
    ) -> None:
        """Watch a client; called at each of its connections.

        The first begins the watch, a later one (a context) makes it look again.  Returns at once, and never fails.  gpus: the
        UUIDs of its domain.  has_company: whether its end could hurt another client: one is in its domain, and the domain is
        not in FAULT.  is_roomy: its memory limit leaves room for a context.
        """
        known = self._watches.get(process)
        if known is not None:
            known.connect(domain, gpus, has_company)
        elif not self.settings.is_idle and self._has_room():
            self._begin(Watch(process, domain, gpus, has_company, is_roomy, replace(self.settings), self._around))

    def note_leaving(self, process: ProcessId) -> None:
        """Note that a connection of this client has ended, perhaps because the client is ending."""
        if (known := self._watches.get(process)) is not None:
            known.note_leaving()

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """Report GPU faults in this range even if the driver served them; return whether that is possible.  Raise TooMany."""
        known = self._watches.get(process)
        return known is not None and await known.guard(base, length)

    def release(self, process: ProcessId) -> None:
        """Hold nothing of this client after its end: its GPU work was ended, or no other client needs protection."""
        if (known := self._watches.get(process)) is not None:
            known.release()

    def holds(self, process: ProcessId) -> bool:
        """Return whether its GPU address space outlives it for hold_seconds, if it is killed and others are in its domain."""
        return self.standing(process).held

    async def wait_over(self, process: ProcessId) -> None:
        """Wait until nothing of the process is held or being closed; return at once if it was never watched."""
        while process in self._watches:
            await self._over.setdefault(process, trio.Event()).wait()  # as long as it lives, and then settings.hold_seconds

    def standing(self, process: ProcessId) -> WatchStatus:
        known = self._watches.get(process)
        return known.standing if known is not None else UNKNOWN

    @property
    def absent(self) -> str:
        """Why a client, or all, cannot be attached; empty if no such reason is known."""
        return "switched off" if self.settings.is_idle else "; ".join(sorted(self._reasons))

    @property
    def count(self) -> int:
        return len(self._watches)

    # -- lifetime --------------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; then release everything."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for watch in self._early:
                nursery.start_soon(self._run, watch)
            self._early.clear()
            task_status.started()
            try:
                await self._sweep()
            finally:
                self._nursery = None

    def _count(self, process: ProcessId, more: int) -> None:
        self._held[self._shares[process]] += more

    def _may_take(self, process: ProcessId) -> bool:
        share = self._shares[process]
        return may_take(self._clients[share], self._held[share])

    def _begin(self, watch: Watch) -> None:
        self._watches[watch.process] = watch
        self._shares[watch.process] = share = self._share_of(processes.real_uid(watch.process.pid))
        self._clients[share] += 1
        if self._nursery is None:
            self._early.append(watch)
        else:
            self._nursery.start_soon(self._run, watch)

    async def _run(self, watch: Watch) -> None:
        """Run one watch.  A failure in it ends this watch and nothing else."""
        try:
            await watch.run()
        except Exception:
            log.exception("uvm.bug", pid=watch.process.pid)
        finally:
            del self._watches[watch.process]
            share = self._shares.pop(watch.process)
            self._clients[share] -= 1
            if not self._clients[share]:
                del self._clients[share], self._held[share]
            if (over := self._over.pop(watch.process, None)) is not None:
                over.set()

    async def _sweep(self) -> None:
        """Wake the watches of clients that closed their descriptors, or started another program, without a connection."""
        while True:
            await trio.sleep(_SWEEP_SECONDS)
            owners = {holding: watch for watch in self._watches.values() for holding in watch.holdings}
            for holding in await self._around.in_thread(find_closed, list(owners), self._around.inspector) if owners else ():
                owners[holding].wake()

    def _has_room(self) -> bool:
        was_full, self._is_full = self._is_full, len(self._watches) >= self.settings.most
        if self._is_full and not was_full:
            log.error("uvm.full", most=self.settings.most, effect="further clients have no shield, and are not watched")
        return not self._is_full

    def _tell_absent(self, why: str) -> None:
        if why not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
            log.warning("uvm.absent", why=why, effect="faults are reported later and without proof, and clients have no shield")


def _threads(limiter: trio.CapacityLimiter) -> InThread:
    async def in_thread(function: Callable[..., Any], *args: object) -> Any:
        return await trio.to_thread.run_sync(function, *args, limiter=limiter)

    return in_thread
