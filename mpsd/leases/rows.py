"""Convert leases and grants to rows of a table, and back.

This version reads the rows that it wrote; the store decides by its own version about others (store.py).
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from mpsd.leases.rules.budgets import Owner
from mpsd.leases.rules.usage import ClientUsage
from mpsd.model.lease import DomainPolicy, Grant, Lease, LeaseSpec, LeaseState, Selector, SelectorKind
from mpsd.model.process import Credentials, ProcessId

Row = tuple[Any, ...]


class Admitted(Struct, frozen=True):
    """A client that was admitted with a lease."""

    process: ProcessId
    credentials: Credentials
    grant: Grant
    held: ClientUsage


def spec_text(spec: LeaseSpec) -> str:
    return _json(_plain(spec) | {"selector": _plain(spec.selector)})


def lease_row(lease: Lease) -> Row:
    """Return the row without the id, which the store gives."""
    return (lease.owner_uid, lease.for_all_users, lease.state.value, lease.created_at, lease.expires_at, spec_text(lease.spec))


def lease_of(row: Row) -> Lease:
    lease_id, owner_uid, for_all_users, state, created_at, expires_at, spec = row
    return Lease(lease_id, owner_uid, _spec(json.loads(spec)), LeaseState(state), created_at, expires_at, bool(for_all_users))


def admitted_row(one: Admitted) -> Row:
    held = one.held
    facts = {
        "grant": _plain(one.grant),
        "pool": held.pool,
        "gpus": held.gpus,
        "owner": held.owner,
        "share": held.share,
        "part": held.part,
    }
    who = one.credentials
    return (one.process.pid, one.process.start_time, who.uid, who.gid, held.lease_id, _json(facts))


def admitted_of(row: Row) -> Admitted:
    pid, start_time, uid, gid, lease_id, text = row
    facts = json.loads(text)
    said = facts["grant"]
    grant = Grant(**said | {"gpus": tuple(said["gpus"]), "domain": DomainPolicy(said["domain"])})
    owner = facts["owner"] and Owner(facts["owner"][0], tuple(facts["owner"][1]))
    gpus = tuple(facts["gpus"])
    held = ClientUsage(lease_id, facts["pool"], gpus, owner, facts["share"], facts["part"], grant.memory_bytes)
    return Admitted(ProcessId(pid, start_time), Credentials(pid, uid, gid), grant, held)


def _spec(said: dict[str, Any]) -> LeaseSpec:
    selector = said["selector"]
    return LeaseSpec(
        **said
        | {
            "selector": Selector(SelectorKind(selector["kind"]), selector["value"], selector["start_time"]),
            "gpus": tuple(said["gpus"]),
            "domain": DomainPolicy(said["domain"]),
        }
    )


def _plain(value: LeaseSpec | Grant | Selector) -> dict[str, Any]:
    """Return its fields, with mappings as dicts for JSON."""
    found = asdict(value)
    return {name: dict(each) if isinstance(each, Mapping) else each for name, each in found.items()}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
