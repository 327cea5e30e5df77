"""What a restarted mpsd takes over from an earlier one, and in which order.

1. The connections that the keeper holds (`take_connections`), before any task starts.
2. Their handshakes (`settle`): a vendor daemon that waits for a client's next message answers no command.
3. The domains: each finds its own vendor daemon and its clients (domains/lifecycle.py).  New clients are placed afterwards.

The leases, incidents, arenas and services are read from their databases when these are opened.  Prose: docs/operating.md.
"""

import socket

import trio

from mpsd.domains.pool import Pool
from mpsd.errors import VendorFailed
from mpsd.keeper.connections import KeeperClient
from mpsd.relay.server import Relay

HeldSocket = tuple[str, socket.socket, int]


def take_connections(relayed: tuple[Relay, KeeperClient] | None) -> tuple[list[HeldSocket], bool]:
    """Open the keeper; return what it holds, and whether an earlier mpsd had started it.  Raises KeeperFailed."""
    if relayed is None:
        return [], False
    keeper = relayed[1]
    keeper.find_unreachable()
    is_old = keeper.open()
    return (keeper.held() if is_old else []), is_old


async def settle(
    pool: Pool, relayed: tuple[Relay, KeeperClient] | None, held: list[HeldSocket], is_old: bool, conversations: trio.Nursery
) -> None:
    """Resume the handshakes, wait for the domains, then allow clients to be placed.  Raises VendorFailed."""
    if relayed:
        relayed[0].resume(held, conversations)
    try:
        await pool.settled()
    except VendorFailed:
        if relayed and not is_old:
            relayed[1].stop()  # it holds no descriptors yet
        raise
    if relayed:
        relayed[0].begin_placing()
