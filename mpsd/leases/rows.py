"""Convert leases and grants to rows of a table, and back.

This version reads the rows that it wrote; the store decides by its own version about others (store.py).
"""

import json
from typing import Any

from msgspec import Struct, convert, to_builtins

from mpsd.leases.rules.usage import ClientUsage
from mpsd.model.lease import Grant, Lease, LeaseSpec, LeaseState
from mpsd.model.process import Credentials, ProcessId

Row = tuple[Any, ...]


class Admitted(Struct, frozen=True):
    """A client that was admitted with a lease."""

    process: ProcessId
    credentials: Credentials
    grant: Grant
    held: ClientUsage


def lease_row(lease: Lease) -> Row:
    """Return the row without the id, which the store gives."""
    return (lease.owner_uid, lease.for_all_users, lease.state.value, lease.created_at, lease.expires_at, _json(lease.spec))


def lease_of(row: Row) -> Lease:
    lease_id, owner_uid, for_all_users, state, created_at, expires_at, spec = row
    said = convert(json.loads(spec), LeaseSpec)
    return Lease(lease_id, owner_uid, said, LeaseState(state), created_at, expires_at, bool(for_all_users))


def admitted_row(one: Admitted) -> Row:
    who = one.credentials
    return (one.process.pid, one.process.start_time, who.uid, who.gid, one.held.lease_id, _json((one.grant, one.held)))


def admitted_of(row: Row) -> Admitted:
    pid, start_time, uid, gid, _, text = row
    grant, held = convert(json.loads(text), tuple[Grant, ClientUsage])
    return Admitted(ProcessId(pid, start_time), Credentials(pid, uid, gid), grant, held)


def _json(value: LeaseSpec | tuple[Grant, ClientUsage]) -> str:
    """json writes a lone surrogate, as of a token; msgspec's encoder refuses it."""
    return json.dumps(to_builtins(value, enc_hook=dict), separators=(",", ":"))  # a mapping may be one that cannot be changed
