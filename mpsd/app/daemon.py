"""The daemon's tasks: the order in which they start, and how they end.

services       domains, upkeep, keeper, signals     started first, stopped last
conversations  relayed connections, sessions        ended by their peers, or with the services
listeners      the doors and the command socket     started last, stopped first
"""

import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from msgspec import Struct, field

from mpsd.api import server as api_server
from mpsd.api.event_bus import EventBus
from mpsd.api.server import Api
from mpsd.app.adoption import HeldSocket, settle, take_connections
from mpsd.app.domain_events import tell_of_domains
from mpsd.app.instance_lock import PID_FILE
from mpsd.app.public_paths import PublicPaths
from mpsd.app.readiness import Notifier
from mpsd.commands.sessions import Sessions
from mpsd.domains.pool import Pool
from mpsd.domains.store import SqliteStore
from mpsd.domains.upkeep import Upkeep
from mpsd.errors import KeeperFailed
from mpsd.faults.lifecycle import Faults
from mpsd.host.child_reaper import Reaper
from mpsd.host.listeners import leave_open
from mpsd.host.pipe_directory import PipeDirectory
from mpsd.keeper.connections import KeeperClient
from mpsd.leases.lease_book import LeaseBook
from mpsd.relay.public_sockets import DOORS, LinkedSockets, RelayedSockets
from mpsd.relay.server import Relay
from mpsd.sentinel.sentinels import Sentinels
from mpsd.services.requests import ServiceRequests
from mpsd.stop.quit import Shutdown
from mpsd.vault.lifecycle import Vault

log = structlog.get_logger()
UI_SOCKET = "mpsd-ui"
TakeSignal = Callable[["Daemon", int], Awaitable[None]]
Serve = Callable[[socket.socket, trio.Nursery], Awaitable[None]]
_KEEPER_SECONDS = 0.5
_COLLECT_SECONDS = 5.0
_REFUSAL_SECONDS = 4.0
_REPLY_SECONDS = 1.0  # the answer to `quit` is still being sent when mpsd ends


class Daemon(Struct, kw_only=True):
    """All parts of the daemon, connected."""

    pipe: PipeDirectory
    pool: Pool
    upkeep: Upkeep
    sessions: Sessions
    ending: Shutdown
    store: SqliteStore
    notifier: Notifier
    relayed: tuple[Relay, KeeperClient] | None  # None: unprivileged
    book: LeaseBook
    api: Api
    events: EventBus
    faults: Faults
    vault: Vault
    failover: ServiceRequests
    serve_metrics: Callable[..., Awaitable[None]] | None  # None: not configured
    restore: Callable[[], None]  # the pipe directory
    stop: trio.Event = field(default_factory=trio.Event)  # set: exit now, even if tasks still run
    sentinels: Sentinels | None = None  # None: unprivileged
    beside: list[Callable[[], Awaitable[None]]] = field(default_factory=list)  # other tasks that run as long
    _services: trio.Nursery | None = None
    _listeners: list[socket.socket] = field(default_factory=list)

    async def run(self, ready: Callable[[], None], take_signal: TakeSignal) -> int:
        """Run until `quit` or a signal; return the exit status.  Raises MpsdError if it cannot start."""
        held, is_old = take_connections(self.relayed)
        async with trio.open_nursery() as services:
            self._services = services
            services.start_soon(self.faults.run)
            services.start_soon(self.vault.run)
            services.start_soon(self.failover.run)
            if self.sentinels:
                await services.start(self.sentinels.run)
            await services.start(self.pool.run, self.store.domains())
            async with trio.open_nursery() as conversations:
                await settle(self.pool, self.relayed, held, is_old, conversations)
                services.start_soon(self.upkeep.run)
                services.start_soon(_collect)
                for each in self.beside:
                    services.start_soon(each)
                services.start_soon(tell_of_domains, self.pool, self.events.publish)
                services.start_soon(self.book.run)
                if self.serve_metrics:
                    await services.start(self.serve_metrics)
                async with trio.open_nursery() as listeners:
                    places = self._open_doors(held, services, conversations, listeners)
                    for name, mode, serve in self._sockets():
                        places[name] = partial(self._open, name, mode, serve, conversations, listeners)
                        places[name]()
                    places[PID_FILE] = lambda: None  # self.restore writes it
                    listeners.start_soon(PublicPaths(self.pipe, self.restore, places, lambda: self.pool.is_stopping).run)
                    await services.start(self._take_signals, take_signal)  # before ready: its receiver may send a signal
                    ready()
                    await self.stop.wait()  # for ever: this is the daemon's life
                    listeners.cancel_scope.cancel()
                for listener in self._listeners:
                    leave_open(listener)
                with trio.move_on_after(_REPLY_SECONDS):
                    await self.sessions.settled()
                conversations.cancel_scope.cancel()
            services.cancel_scope.cancel()
        return self.ending.status or 0

    async def quit(self, timeout_seconds: float | None) -> int:
        """End everything but the daemon itself, and let the daemon exit; return the status."""
        try:
            status = await self.ending.quit_all(timeout_seconds)
            await self.vault.end()
            self.clean_up()
        except Exception:
            self.stop.set()  # else mpsd would go on without domains; a caller that is cancelled ends nothing
            raise
        self.stop.set()
        return status

    def begin_quit(self, timeout_seconds: float) -> None:
        """Start to quit, without waiting for it; a repeated call can only shorten the wait."""
        assert self._services is not None, "signals are taken in run()"
        self._services.start_soon(self.quit, timeout_seconds)

    async def see_off(self) -> None:
        """Close the doors, and wait a moment until the clients already connected have been refused.

        If they were disconnected instead, they would run without MPS.
        """
        self.pipe.remove_last(*DOORS)
        if self.relayed:
            with trio.move_on_after(_REFUSAL_SECONDS):
                await self.relayed[0].settled()

    def move_state(self) -> None:
        """Let the keeper and the progress of connections continue in a state directory that was made again.  Raises OSError."""
        if self.relayed:
            relay, keeper = self.relayed
            relay.move_state()
            keeper.kill()  # _keep_keeper starts its successor

    def clean_up(self) -> None:
        """Remove what a client or the next daemon could take for a running one, after the domains have ended.

        The directory of core dumps stays: a user can hold its lock, and rmdir(2) would wait with that of the pipe directory.
        """
        self.pipe.remove_last(UI_SOCKET, api_server.SOCKET, *DOORS)
        if self.relayed:
            self.relayed[1].stop()
        self.store.forget_all()

    def _open_doors(
        self,
        held: list[HeldSocket],
        services: trio.Nursery,
        conversations: trio.Nursery,
        listeners: trio.Nursery,
    ) -> dict[str, Callable[[], None]]:
        """Open the doors; return by name the function that opens each again."""
        if self.relayed is None:
            linked = LinkedSockets(self.pipe, self.pool)
            listeners.start_soon(linked.run)
            return {door: partial(linked.open_again, door) for door in DOORS}
        relay, keeper = self.relayed
        doors = RelayedSockets(self.pipe, relay, keeper)
        doors.open(held)
        services.start_soon(self._keep_keeper, doors, keeper)
        services.start_soon(relay.hang_ups.run)

        def again(door: str) -> None:
            doors.open_again(door)
            listeners.start_soon(doors.serve, door, conversations)

        for door in DOORS:
            listeners.start_soon(doors.serve, door, conversations)
        return {door: partial(again, door) for door in DOORS}

    def _sockets(self) -> tuple[tuple[str, int, Serve], ...]:
        return (UI_SOCKET, 0o666, self.sessions.serve), (api_server.SOCKET, api_server.MODE, self.api.serve)

    def _open(self, name: str, mode: int, serve: Serve, conversations: trio.Nursery, listeners: trio.Nursery) -> None:
        """Open a socket; clients of an earlier socket of this name continue to be served there."""
        listener = self.pipe.listen(name, mode)
        self._listeners.append(listener)
        listeners.start_soon(serve, listener, conversations)

    async def _keep_keeper(self, doors: RelayedSockets, keeper: KeeperClient) -> None:
        """Replace a keeper that died; until then mpsd alone holds everything."""
        while True:
            await keeper.wait_lost()
            if self.pool.is_stopping:
                return
            log.error("keeper.replaced", why="it died; connections were not touched")
            try:
                await keeper.replace()
                doors.hold_all()
            except KeeperFailed as exc:
                log.error("keeper.absent", why=str(exc))
                await trio.sleep(_KEEPER_SECONDS)

    async def _take_signals(
        self, take_signal: TakeSignal, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                log.info("signal", name=signal.Signals(number).name)
                await take_signal(self, number)



async def _collect() -> None:
    reaper = Reaper()
    while True:
        await trio.sleep(_COLLECT_SECONDS)
        reaper.look()
