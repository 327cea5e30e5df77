"""Give each client its own limits, at a server with one set of limits for the next client (docs/leases.md, "Enforcement").

A window is the time in which a client may come: from before its connection reaches the vendor's daemon until the server's log
reports that it has arrived.  A client with limits has a window alone, because a connection of the server's user can send the
vendor's commands, which change the limits (docs/decisions/055); clients without limits share one.  handshake_gate.py decides
who comes next.  Between windows the server's limits are closed, so that a client that comes outside of every window gets an
error rather than too much.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.handshake_gate import Entrant, HandshakeGate, Pass
from mpsd.domains.rules import vendor_limits
from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.domains.vendor_control import VendorControl
from mpsd.errors import VendorFailed

log = structlog.get_logger()
_CLOSE_SECONDS = 5.0
_ADOPTED_SECONDS = 2.0  # a context that an earlier mpsd admitted may still be coming


class ConnectingClient:
    """One connection of a client that is connecting."""

    def __init__(self) -> None:
        self._is_there = trio.Event()

    async def settled(self, patience_seconds: float) -> bool:
        """Wait until the client has arrived: True, or until the patience ends: whether it has."""
        with trio.move_on_after(patience_seconds):
            await self._is_there.wait()
        return self._is_there.is_set()

    def set(self) -> None:
        self._is_there.set()


class Guard(Struct):
    """Guards that while a client is connecting, its server has the limits of that client.

    Off until the first client with limits comes: then the vendor's daemon gets no commands, and all clients share one window.
    `baselines`: of each server, what its user or operator has set for it; no client gets more.  They are read from the vendor's
    daemon only when the guard is turned on, because the daemon rounds memory limits down.
    """

    gpus: tuple[str, ...]
    is_on: bool = False
    baselines: dict[int, ClientLimits] = field(default_factory=dict)
    era: int = 0  # in another era, limits that were set before do not hold
    _in_force: dict[int, ClientLimits] = field(default_factory=dict)  # the last limits that each server took; absent: not known
    _gate: HandshakeGate = field(default_factory=HandshakeGate)
    _window: int = 0  # of which `_in_force` is
    _telling: trio.Lock = field(default_factory=trio.Lock)
    _arrivals: dict[int, deque[ConnectingClient]] = field(default_factory=dict)

    # -- windows -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def window(self, entrant: Entrant, control: VendorControl) -> AsyncIterator[Pass]:
        """Enter a window; inside are only holders of the same key, or one client with limits.  A key may be ClientLimits."""
        if isinstance(entrant.key, ClientLimits) and entrant.key != vendor_limits.unlimited(self.gpus):
            entrant.key = object()
        try:
            async with self._gate.turn(entrant) as right:
                if self._window != self._gate.window:
                    self._window = self._gate.window
                    self._in_force.clear()  # a connection in the window before may have changed them
                yield right
        finally:
            if self.is_on and not self._gate.inside:
                with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await self._close(control)

    async def turn_on(self, server_pids: Iterable[int], defaults: ClientLimits, control: VendorControl) -> None:
        """Admit only clients with limits from here on.  Raise VendorFailed; then the guard stays off."""
        async with self._telling:
            for server_pid in server_pids:
                await self._learn_baseline(server_pid, defaults, control)
            self.is_on = True

    async def set_limits(self, server_pid: int, limits: ClientLimits, defaults: ClientLimits, control: VendorControl) -> None:
        """Set the limits, inside a window.  `defaults`: what a server is started with that started after `turn_on`.

        Raise VendorFailed if it is not certain that the limits hold; then no client may be admitted.
        """
        async with self._telling:
            baseline = self.baselines.setdefault(server_pid, defaults)
            await self._tell(server_pid, vendor_limits.tighter(limits, baseline), control)

    async def hold_adopted(self, control: VendorControl) -> None:
        """Keep the limits in force after a restart of mpsd, until the clients that the earlier one admitted have arrived."""
        async with self.window(Entrant("adopted"), control):
            await trio.sleep(_ADOPTED_SECONDS)

    # -- arrivals ----------------------------------------------------------------------------------------------------

    def expect(self, pid: int) -> ConnectingClient:
        arrival = ConnectingClient()
        self._arrivals.setdefault(pid, deque()).append(arrival)
        return arrival

    @property
    def connecting_pids(self) -> frozenset[int]:
        """The clients that are linked, and have not arrived yet, by the pids that the domain sees."""
        return frozenset(self._arrivals)

    def forget_arrival(self, pid: int, arrival: ConnectingClient) -> None:
        queue = self._arrivals.get(pid)
        if queue and arrival in queue:
            queue.remove(arrival)
        if not queue:
            self._arrivals.pop(pid, None)

    def hear(self, pid: int) -> None:
        """Note the server's report that a client has arrived: its oldest pending connection counts."""
        if queue := self._arrivals.get(pid):
            queue.popleft().set()

    def forget(self) -> None:
        """Forget all servers: the vendor's daemon has ended, and they with it."""
        self.is_on = False
        self.era += 1
        self.baselines.clear()
        self._in_force.clear()
        for queue in self._arrivals.values():
            for arrival in queue:
                arrival.set()
        self._arrivals.clear()

    def forget_servers_but(self, pids: set[int]) -> None:
        for table in (self.baselines, self._in_force):
            for gone in set(table) - pids:
                del table[gone]

    # -- steps -------------------------------------------------------------------------------------------------------

    async def _learn_baseline(self, server_pid: int, defaults: ClientLimits, control: VendorControl) -> None:
        """Read the limits that the server's user or operator has set, while they are in force."""
        percent = vendor_limits.read_percent(await control.commands((f"get_active_thread_percentage {server_pid}",)))
        memory = [
            vendor_limits.read_memory(await control.commands((f"get_device_pinned_mem_limit {server_pid} {ordinal}",)))
            for ordinal in range(len(self.gpus))
        ]
        if percent is None or None in memory:
            raise VendorFailed(f"the limits of server {server_pid} cannot be read")
        self.baselines[server_pid] = ClientLimits(percent, tuple(size or 0 for size in memory), defaults.priority)

    async def _tell(self, server_pid: int, wanted: ClientLimits, control: VendorControl) -> None:
        if self._in_force.get(server_pid) == wanted:
            return
        before = self._in_force.pop(server_pid, None)
        answer = await control.commands(vendor_limits.commands(server_pid, wanted, before.priority if before else None))
        if answer != vendor_limits.proof(wanted):
            raise VendorFailed(f"server {server_pid} did not take {wanted}: {answer.strip()!r}")
        self._in_force[server_pid] = wanted

    async def _close(self, control: VendorControl) -> None:
        """Close the limits, unless a client has come.  If that fails, they are set again before the next client is admitted."""
        async with self._telling:
            for server_pid, baseline in list(self.baselines.items()):
                if self._gate.inside:
                    return
                try:
                    await self._tell(server_pid, vendor_limits.closed(self.gpus, baseline.priority), control)
                except VendorFailed as exc:
                    log.warning("limits.not_closed", server=server_pid, why=str(exc))
