"""The method table: who may, what is asked, who answers, whether it is a change, and what people are told about it.

docs/protocol.md is checked against it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mpsd.api.exchange import Handler, paged
from mpsd.api.methods import clients, daemon, domains, events, faults, leases, limits, stop
from mpsd.api.services import Services
from mpsd.errors import MpsdError, NoSuchClient, NoSuchLease
from mpsd.wire import messages
from mpsd.wire.messages import ClientId, LeaseId, RenewLease


class Privilege(Enum):
    """Who may, in the words of docs/protocol.md.  Operators may everything (authority.py)."""

    ANYONE = "anyone"
    SEEN = "anyone, of what is theirs; an operator, of all"  # lists: rows of others are left out (exchange.py, paged)
    OWNER = "an operator, and the user whose it is"
    CLIENT = "a client, of itself"  # the handler knows who asks, and takes nobody else's word (methods/faults.py)
    OPERATOR = "an operator"


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table.

    changes: it is audited.  owner and absent are those of Privilege.OWNER: the user whose it is (or the refusal that it is not
    there), and the refusal for it, the same whether it is not there or another's: that it exists is told to nobody else.
    told: what came of it, in words for the audit, where "done" does not say all.
    """

    privilege: Privilege
    ask: type
    run: Handler
    help: str
    changes: bool = False
    owner: Callable[[Services, Any], int | None] | None = None
    absent: Callable[[Any], MpsdError] | None = None
    told: Callable[[Mapping[str, Any]], str] | None = None


def _no_lease(ask: LeaseId | RenewLease) -> MpsdError:
    return NoSuchLease(f"no lease has id {ask.id}")


def _no_client(ask: ClientId) -> MpsdError:
    return NoSuchClient(f"no client has pid {ask.pid}")


def _of_lease(ask: type, run: Handler, help: str, *, changes: bool) -> Method:
    return Method(Privilege.OWNER, ask, run, help, changes, leases.owner, _no_lease)


def _of_client(ask: type, run: Handler, help: str, *, changes: bool) -> Method:
    return Method(Privilege.OWNER, ask, run, help, changes, clients.owner, _no_client)


HELLO = "hello"  # answered by the connection itself, once

METHODS: dict[str, Method] = {
    "status": Method(Privilege.ANYONE, messages.Nothing, daemon.status, "What mpsd is and how much there is of everything"),
    "health": Method(Privilege.ANYONE, messages.Nothing, daemon.health, "Whether a client that comes would be served"),
    "device.list": Method(Privilege.ANYONE, messages.Page, paged(domains.list_devices), "The GPUs of the daemon"),
    "lease.create": Method(Privilege.ANYONE, messages.CreateLease, leases.create, "Make a lease", changes=True),
    "lease.renew": _of_lease(RenewLease, leases.renew, "Let a lease last longer", changes=True),
    "lease.release": _of_lease(LeaseId, leases.release, "Give a lease back", changes=True),
    "lease.get": _of_lease(LeaseId, leases.get, "One lease", changes=False),
    "lease.list": Method(Privilege.SEEN, messages.ListLeases, paged(leases.list_leases), "Leases, by id"),
    "queue.list": Method(
        Privilege.SEEN, messages.Page, paged(leases.list_queue), "Leases and clients that wait, by their position"
    ),
    "client.list": Method(Privilege.SEEN, messages.Page, paged(clients.list_clients), "Clients, by pid"),
    "client.why": _of_client(ClientId, clients.why, "Which rule gave a client what, and what it waits for", changes=False),
    "client.terminate": _of_client(ClientId, clients.terminate, "End the outstanding GPU work of a client", changes=True),
    "client.stop": Method(
        Privilege.SEEN,
        messages.StopClient,
        stop.stop,
        "End client processes, their GPU work first",
        changes=True,
        told=stop.told,
    ),
    "client.move": Method(
        Privilege.OPERATOR, messages.MoveClient, clients.move, "Choose the domain of a client's next start", changes=True
    ),
    "domain.list": Method(Privilege.ANYONE, messages.Page, paged(domains.list_domains), "Fault domains, by number"),
    "domain.create": Method(Privilege.OPERATOR, messages.CreateDomain, domains.create, "Begin a fault domain", changes=True),
    "domain.drain": Method(
        Privilege.OPERATOR, messages.DomainName, domains.drain, "Let a domain take nobody, and go when empty", changes=True
    ),
    "domain.recycle": Method(
        Privilege.OPERATOR, messages.DomainName, domains.recycle, "Replace the servers of an empty domain", changes=True
    ),
    "limits.get": Method(Privilege.ANYONE, messages.Nothing, limits.get, "The limits of clients without a lease"),
    "limits.set": Method(
        Privilege.OPERATOR, messages.SetLimits, limits.set_limits, "Set the limits of clients without a lease", changes=True
    ),
    "faults.list": Method(
        Privilege.ANYONE, messages.Page, paged(events.list_faults), "Events about faults since the start, by number"
    ),
    "fault.list": Method(
        Privilege.ANYONE, messages.ListIncidents, paged(faults.list_incidents), "Faults, each put together from its events"
    ),
    "fault.get": Method(Privilege.ANYONE, messages.IncidentNumber, faults.get, "Everything that is known of one fault"),
    "fault.report": Method(Privilege.CLIENT, messages.ReportError, faults.report, "Say one's own first CUDA error"),
    "blame.list": Method(Privilege.OPERATOR, messages.Page, paged(faults.list_blame), "What is held against whom"),
    "blame.pardon": Method(
        Privilege.OPERATOR, messages.BlameKey, faults.pardon, "Hold nothing against somebody any more", changes=True
    ),
    "events.subscribe": Method(Privilege.SEEN, messages.Subscribe, events.subscribe, "Be told of events from now on"),
    "events.unsubscribe": Method(Privilege.ANYONE, messages.Nothing, events.unsubscribe, "Be told no more events"),
}
