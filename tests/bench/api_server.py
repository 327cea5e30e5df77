"""The server's side for bench_api.py: mpsd's socket, over a book in memory with many leases, and a bare echo for comparison."""

import os
import socket
from pathlib import Path

import structlog
import trio

from mpsd.host.listeners import listen
from mpsd.model.lease import Lease, LeaseSpec, LeaseState
from tests.unit.api.fake_daemon import FakeDaemon, open_daemon
from tests.unit.api.fake_services import selector_of

AT_ONCE = 50  # events published before others have their turn
LEASES = 10_000


async def serve(place: Path, orders: int, ready: int) -> None:
    """Serve until killed; publish as many events as requested."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    async with open_daemon(place, max_per_user=400, max_connections=1000) as daemon:
        spec = LeaseSpec("training", selector_of(1000), sm_percent=10)
        leases = {number: Lease(number, 1000, spec, LeaseState.ACTIVE, 0.0, None) for number in range(1, LEASES + 1)}
        daemon.fakes.leases.made = leases
        daemon.listen(place)
        with listen(place / "echo", 0o666) as listener:
            daemon.nursery.start_soon(_serve_echo, listener, daemon.nursery)
            os.write(ready, b"!")
            while True:
                await trio.lowlevel.wait_readable(orders)
                await _publish(daemon, int.from_bytes(os.read(orders, 4)))


async def _publish(daemon: FakeDaemon, count: int) -> None:
    for number in range(count):
        daemon.bus.publish("domain.ready", {"domain": "d1", "was": "starting", "gpus": ["GPU-1"], "clients": number})
        if number % AT_ONCE == AT_ONCE - 1:
            await trio.lowlevel.checkpoint()


async def _serve_echo(listener: socket.socket, nursery: trio.Nursery) -> None:
    """The least that a server of trio's can do."""
    while True:
        await trio.lowlevel.wait_readable(listener)
        connection, _ = listener.accept()
        connection.setblocking(False)
        nursery.start_soon(_echo, connection)


async def _echo(connection: socket.socket) -> None:
    with connection:
        while True:
            await trio.lowlevel.wait_readable(connection)
            data = connection.recv(65536)
            if not data:
                return
            connection.send(data)
