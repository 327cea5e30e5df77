"""Watch the UVM descriptors of all clients: the first connection of a client starts its watch.

If mpsd cannot watch a client (it is not root, the tools device is missing, the layout is another), it logs each reason once,
and the client runs unwatched.  Prose: docs/uvm.md.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

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
from mpsd.notify import Signal
from mpsd.threads import UserThreads, run_in_thread
from mpsd.uvm.client_watch import InThread, Watch, WatchParts
from mpsd.uvm.holding import OpenSpaces, find_closed
from mpsd.uvm.status import UvmSettings

log = structlog.get_logger()
_THREADS = 64  # a GPU that blocks its driver must not use up the threads of other tasks
_THREADS_OF_USER = 8  # a user can make each look at a client take as long as the inspector waits
_SWEEP_SECONDS = 2.0
_MOST_REASONS = 64


class Attachments:
    """Guards that each client is attached at most once, and no more than `settings.most` of them.

    New `settings` apply to clients that connect afterwards.  client_ended: a client that had asked for a context, its domain,
    and whether it had one.
    """

    def __init__(
        self,
        settings: UvmSettings,
        open_spaces: OpenSpaces,
        inspector: Inspector,
        in_thread: InThread | None = None,
        ranges: UidRanges = NO_RANGES,
    ) -> None:
        """ranges: the uids of one range count as one user."""
        self.settings = settings
        self.observed = Signal[[Observation]]()
        self.client_ended = Signal[[ProcessId, str, bool]]()
        self._share_of = ranges.share_of
        self._shares: dict[ProcessId, int] = {}  # the share that each client counts against
        self._clients: Counter[int] = Counter()  # by share
        self._held: Counter[int] = Counter()  # descriptors, by share
        self._served: dict[int, trio.Lock] = {}  # by share, of those with clients
        self._around = WatchParts(
            open_spaces,
            self._count,
            self._may_take,
            inspector,
            self.observed.emit,
            in_thread or _threads(),
            in_thread or _threads(),
            self._tell_absent,
            self.client_ended.emit,
        )
        self._looks = UserThreads(_THREADS_OF_USER, self._around.in_thread)
        self._closings = UserThreads(_THREADS_OF_USER, self._around.close)
        self._watches: dict[ProcessId, Watch] = {}
        self._early: list[Watch] = []
        self._over: dict[ProcessId, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self._reasons: set[str] = set()
        self._is_full = False

    # -- for the relay and the lists -------------------------------------------------------------------------------------

    def watch(
        self,
        process: ProcessId,
        domain: str,
        gpus: tuple[str, ...],
        has_company: Callable[[], bool],
        is_roomy: bool = True,
        uid: int | None = None,
        has_asked: bool = True,
        is_again: bool = False,
    ) -> None:
        """Watch a client; call it at each connection of the client.

        The first call starts the watch; a later one, for a context, makes the watch look again.  It returns at once, and never
        fails.  gpus: the UUIDs of the domain.  has_company: whether the client's end could hurt another one, since the domain
        has other clients and is not in FAULT.  is_roomy: the client's memory limit leaves room for a context.  uid: with which
        it connected: it may run another user's program by now; None: not known.  has_asked: for a context, or it may have.
        is_again: the connection was linked before: it is no further one.
        """
        known = self._watches.get(process)
        if known is not None:
            known.connect(domain, gpus, has_company, is_again)
        elif not self.settings.is_idle and self._has_room():
            share = self._share_of(uid or processes.charged_uid(process.pid))
            in_thread, close = partial(self._looks.run, share), partial(self._closings.run, share)
            served = self._served.setdefault(share, trio.Lock())
            around = replace(self._around, in_thread=in_thread, close=close, served=served)
            made = Watch(process, domain, gpus, has_company, is_roomy, replace(self.settings), around, has_asked=has_asked)
            self._begin(made, share)

    def note_leaving(self, process: ProcessId) -> None:
        """Record how the client is ending, if it is: one of its connections has ended."""
        if (known := self._watches.get(process)) is not None:
            known.note_leaving()

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """Report GPU faults in this range even if the driver served them; return whether that is possible.  Raise TooMany."""
        known = self._watches.get(process)
        return known is not None and await known.guard(base, length)

    def release(self, process: ProcessId) -> None:
        """Do not hold the client's GPU address space after its end: its GPU work has ended, or it can hurt no other client."""
        if (known := self._watches.get(process)) is not None:
            known.release()

    def holds(self, process: ProcessId) -> bool:
        """Return whether mpsd holds its GPU address space for hold_seconds after a kill, if its domain has other clients."""
        return self.standing(process).held

    def is_watching(self, process: ProcessId) -> bool:
        """Return whether mpsd may have descriptors of the process, for as long as `wait_over` waits."""
        return process in self._watches

    async def wait_over(self, process: ProcessId) -> None:
        """Wait until mpsd has closed all descriptors of the process; return at once if it was never watched."""
        while process in self._watches:
            await self._over.setdefault(process, trio.Event()).wait()  # until its end, and then settings.hold_seconds

    def standing(self, process: ProcessId) -> WatchStatus:
        known = self._watches.get(process)
        return known.standing if known is not None else UNKNOWN

    @property
    def absent(self) -> str:
        """Why some or all clients cannot be watched; empty if no reason is known."""
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

    def _begin(self, watch: Watch, share: int) -> None:
        self._watches[watch.process], self._shares[watch.process] = watch, share
        self._clients[share] += 1
        if self._nursery is None:
            self._early.append(watch)
        else:
            self._nursery.start_soon(self._run, watch)

    async def _run(self, watch: Watch) -> None:
        """Run one watch.  Its failure ends no other watch."""
        try:
            await watch.run()
        except Exception:
            log.exception("uvm.bug", pid=watch.process.pid)
        finally:
            del self._watches[watch.process]
            share = self._shares.pop(watch.process)
            self._clients[share] -= 1
            if not self._clients[share]:
                del self._clients[share], self._held[share], self._served[share]
            if (over := self._over.pop(watch.process, None)) is not None:
                over.set()

    async def _sweep(self) -> None:
        """Wake the watches of clients that closed their descriptors or executed another program; neither makes a connection."""
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


def _threads() -> InThread:
    return partial(run_in_thread, limiter=trio.CapacityLimiter(_THREADS))
