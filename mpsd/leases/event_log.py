"""Publish the events of leases and clients to subscribers and the log.  They never contain a token.

A lease's events have its owner's uid, a client's events the client's: these decide which users get them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mpsd.errors import Refused
from mpsd.model.lease import Grant, Lease
from mpsd.model.process import Credentials, ProcessId

Publish = Callable[[str, Mapping[str, Any]], None]
FactsOf = Callable[[Lease], Mapping[str, object]]  # more facts of a lease, for its event


class LeaseEvents:
    """All topics of leases and clients, in one place."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def of_lease(self, what: str, lease: Lease, **facts: object) -> None:
        """what: created, queued, activated, renewed, released, expired, refused."""
        about = {"lease_id": lease.id, "owner_uid": lease.owner_uid, "name": lease.spec.name, "state": lease.state.value}
        rest = {"expires_at": lease.expires_at, "for_all_users": lease.for_all_users}
        self._publish(f"lease.{what}", about | rest | facts)

    def queued(self, process: ProcessId, who: Credentials, lease_id: int | None, reason: str) -> None:
        self._publish("client.queued", _client(process, who) | {"lease_id": lease_id, "reason": reason})

    def admitted(self, process: ProcessId | None, who: Credentials, grant: Grant) -> None:
        facts = {"lease_id": grant.lease_id, "sm_percent": grant.sm_percent, "rule": grant.rule}
        self._publish("client.admitted", _client(process, who) | facts | {"memory_bytes": dict(grant.memory_bytes)})

    def left(self, process: ProcessId, who: Credentials, lease_id: int | None) -> None:
        self._publish("client.left", _client(process, who) | {"lease_id": lease_id})

    def refused(self, process: ProcessId | None, who: Credentials, refused: Refused) -> None:
        self._publish("client.refused", _client(process, who) | {"way": str(refused.way), "why": str(refused)})


def no_facts(lease: Lease) -> Mapping[str, object]:
    return {}


def _client(process: ProcessId | None, who: Credentials) -> dict[str, object]:
    pid, start_time = (process.pid, process.start_time) if process else (None, None)
    return {"pid": pid, "start_time": start_time, "uid": who.uid}
