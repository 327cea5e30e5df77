"""The reservation of a child: a lease with a token of its own.

The starter renews the lease, which lasts some minutes, so that the reservations of a killed starter expire.  A client that
runs under a lease keeps its resources when the lease ends.
"""

import secrets
from collections.abc import Sequence

from mpsd_client import Lease, Refused, Selector, calls

from mpsctl import words
from mpsctl.starter.mpsd_connection import Away, MpsdConnection
from mpsctl.starter.plan import Make

RENEW_SECONDS = 120.0
_TTL_SECONDS = 600.0
_WAIT_SECONDS = 86400.0
_TOKEN_BYTES = 16


def is_wanted(make: Make) -> bool:
    return make.sm_percent is not None or make.memory_bytes is not None


def reserve(connection: MpsdConnection, name: str, make: Make, gpus: Sequence[str], *, may_wait: bool) -> Lease:
    """Create a lease.  gpus: ordinals or UUIDs; empty: all GPUs.  may_wait: mpsd may queue the lease; its client then waits.

    Raises Away, Refused."""
    sizes = [("", make.memory_bytes)] if make.memory_bytes else []
    return connection.ask(
        calls.lease_create(
            name,
            Selector.of_token(secrets.token_hex(_TOKEN_BYTES)),
            gpus=gpus,
            sm_percent=make.sm_percent,
            memory_bytes=words.spread(sizes, connection.all(calls.device_list()), gpus) if sizes else None,
            ttl_seconds=_TTL_SECONDS,
            wait_seconds=_WAIT_SECONDS if may_wait else 0.0,
            request_key=secrets.token_hex(_TOKEN_BYTES),  # the connection may ask twice
        )
    )


def renew(connection: MpsdConnection, lease_id: int) -> None:
    try:
        connection.ask(calls.lease_renew(lease_id))
    except (Away, Refused):
        pass  # a client that runs under it keeps its resources


def release(connection: MpsdConnection, lease_id: int) -> None:
    try:
        connection.ask(calls.lease_release(lease_id))
    except (Away, Refused):
        pass  # it expires
