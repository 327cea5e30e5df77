"""The two public sockets that CUDA clients connect to, `control` and `control_privileged`.

If mpsd may send other processes' credentials (root), it listens there and relays.  Otherwise a vendor daemon would take every
client for mpsd itself, so the names are links to the current domain's own sockets: clients reach it directly, new clients go to
a healthy domain, and mpsd can do nothing for single clients (docs/unprivileged.md).
"""

import os
import socket

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import PlacementRequest
from mpsd.errors import Stopping, UnusablePath
from mpsd.host.pipe_directory import PipeDirectory
from mpsd.keeper.connections import KeeperClient
from mpsd.log.once import Once
from mpsd.relay.server import Relay

log = structlog.get_logger()
_AGAIN_SECONDS = 5.0  # until a door that could not be linked is tried again
DOORS = {"control": 0o666, "control_privileged": 0o755}  # names and modes are the vendor's


class RelayedSockets(Struct):
    """Guards that the listening sockets outlive mpsd: the keeper holds them, and a restarted mpsd listens on the same ones."""

    directory: PipeDirectory
    relay: Relay
    keeper: KeeperClient
    listeners: dict[str, socket.socket] = field(default_factory=dict)

    def open(self, held: list[tuple[str, socket.socket, int]]) -> None:
        """Listen; on the sockets of an earlier mpsd if clients still reach them."""
        kept = {name: (end, note) for name, end, note in held}
        for door in DOORS:
            end, note = kept.get(f"listen.{door}", (None, 0))
            if end is not None and note == self.directory.inode_of(door):
                end.setblocking(False)
                self.listeners[door] = end
                _show_senders(end)
            else:
                if end is not None:
                    self.keeper.drop(f"listen.{door}")
                self._listen(door)

    def open_again(self, door: str) -> None:
        """Replace a door that clients can no longer reach.  Earlier connections still wait at the old listener."""
        self.keeper.drop(f"listen.{door}")
        self._listen(door)

    def _listen(self, door: str) -> None:
        self.listeners[door] = self.directory.listen(door, DOORS[door])
        _show_senders(self.listeners[door])
        self._hold(door)

    def _hold(self, door: str) -> None:
        self.keeper.hold(f"listen.{door}", self.listeners[door], self.directory.inode_of(door))

    def hold_all(self) -> None:
        """Give all listeners and connections to a new keeper."""
        for door in self.listeners:
            self._hold(door)
        for name, connection, slot in self.relay.connections():
            self.keeper.hold(name, connection, slot)

    async def serve(self, door: str, nursery: trio.Nursery) -> None:
        await self.relay.serve(self.listeners[door], door, nursery)

    def remove(self) -> None:
        for door, listener in self.listeners.items():
            self.directory.remove(door)
            listener.close()


def _show_senders(listener: socket.socket) -> None:
    """Let connections have SO_PASSCRED from accept(2) on: a message sent before it was set would have no sender."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


class LinkedSockets(Struct):
    """Guards that the links lead to a domain that takes clients, whenever one does."""

    directory: PipeDirectory
    pool: Pool
    _led_to: Domain | None = None
    _logged: Once = field(default_factory=Once)

    async def run(self) -> None:
        """Run until mpsd quits: the links then lead to daemons that are quitting too, and refuse clients themselves."""
        me = PlacementRequest(os.geteuid(), frozenset(self.pool.gpus))
        while True:
            try:
                domain = await self.pool.place(me, None)
            except Stopping:
                return
            self._led_to = domain
            try:
                for door in DOORS:
                    self.open_again(door)
            except UnusablePath as exc:
                if self._logged.is_new(str(exc)):
                    log.error("door.not_led", why=str(exc), effect="programs that start may run without MPS")
                with trio.move_on_after(_AGAIN_SECONDS):
                    await self.pool.changed()  # the domain may have ended: a door that is made before the next turn leads there
                continue
            self._logged.clear()
            await self.pool.changed()

    def open_again(self, door: str) -> None:
        """Link a door to the current domain.  Raises UnusablePath."""
        if self._led_to is not None:
            try:
                self._point(door, self._led_to.control.socket_path(door))
            except OSError as exc:
                raise UnusablePath(f"{self.directory.path / door} cannot be made: {exc.strerror}") from None

    def _point(self, door: str, target: str) -> None:
        if self.directory.link_target(door) != target:
            self.directory.link(door, target)
            log.info("door.leads_to", door=door, target=target)

    def remove(self) -> None:
        for door in DOORS:
            self.directory.remove(door)
