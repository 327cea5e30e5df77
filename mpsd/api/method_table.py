"""The method table: privilege, parameters, handler, whether a method changes something, and its help.

A test checks docs/protocol.md against it.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from mpsd.api.authority import Peer
from mpsd.api.call import Handler, paged
from mpsd.api.methods import arenas, clients, daemon, domains, events, faults, leases, limits, queue, services, stop
from mpsd.api.ports import Ports
from mpsd.errors import MpsdError
from mpsd.wire import arena_messages, messages, service_messages
from mpsd.wire.messages import ClientId, LeaseId, RenewLease

Refuses = Callable[[Ports, Peer, Any], MpsdError | None]


class Privilege(Enum):
    """Who may call a method, in the words of docs/protocol.md.  Operators may call all (authority.py)."""

    ANYONE = "anyone"
    SEEN = "anyone, of their own; an operator, of all"  # lists: rows of other users are left out (call.py, paged)
    OWNER = "an operator, and the owner"
    ARENA = "an operator, and users whom the arena's mode admits"
    HOLDER = "a process that has the arena open"  # the vault knows which of these processes is the writer
    CLIENT = "a client, of itself"  # the handler identifies the caller and trusts no claim about it (methods/faults.py)
    OPERATOR = "an operator"


class Method(Struct, frozen=True):
    """A row of the table.

    changes: the call is audited.  refusal: for OWNER, ARENA and HOLDER, returns why this peer may not call it, or None; the
    same refusal for an object that does not exist and for another user's, since its existence is confidential.  told: describes
    the result for the audit, if "done" is not enough.  takes: the number of descriptors with the request; None: never any.
    gives: the result may carry descriptors.  may_be_given_up: the call may wait long, and is cancelled when the peer hangs up.
    """

    privilege: Privilege
    ask: type
    run: Handler
    help: str
    changes: bool = False
    refusal: Refuses | None = None
    told: Callable[[Mapping[str, Any]], str] | None = None
    takes: Callable[[Any], int] | None = None
    gives: bool = False
    may_be_given_up: bool = False


def _of_lease(ask: type, run: Handler, help: str, *, changes: bool) -> Method:
    return Method(Privilege.OWNER, ask, run, help, changes, leases.refusal)


def _of_client(ask: type, run: Handler, help: str, *, changes: bool) -> Method:
    return Method(Privilege.OWNER, ask, run, help, changes, clients.refusal)


def _of_holder(ask: type, run: Handler, help: str, **more: Any) -> Method:
    return Method(Privilege.HOLDER, ask, run, help, refusal=arenas.refusal_unless_holder, **more)


HELLO = "hello"  # answered by the connection itself, once

METHODS: dict[str, Method] = {
    "status": Method(Privilege.ANYONE, messages.Nothing, daemon.status, "Version, uptime and totals of mpsd"),
    "health": Method(Privilege.ANYONE, messages.Nothing, daemon.health, "Whether a client that comes would be served"),
    "device.list": Method(Privilege.ANYONE, messages.Page, paged(domains.list_devices), "The GPUs of the daemon"),
    "lease.create": Method(Privilege.ANYONE, messages.CreateLease, leases.create, "Make a lease", changes=True),
    "lease.renew": _of_lease(RenewLease, leases.renew, "Let a lease last longer", changes=True),
    "lease.release": _of_lease(LeaseId, leases.release, "Give a lease back", changes=True),
    "lease.get": _of_lease(LeaseId, leases.get, "One lease", changes=False),
    "lease.list": Method(Privilege.SEEN, messages.ListLeases, paged(leases.list_leases), "Leases, by id"),
    "queue.list": Method(
        Privilege.SEEN, messages.Page, paged(queue.list_queue), "Leases and clients that wait, by their position"
    ),
    "client.list": Method(Privilege.SEEN, messages.Page, paged(clients.list_clients), "Clients, by pid"),
    "client.why": _of_client(ClientId, clients.why, "The rule behind a client's grant, and why it waits", changes=False),
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
        Privilege.OPERATOR, messages.DomainName, domains.drain, "Close a domain to clients, and end it when empty", changes=True
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
    "fault.report": Method(Privilege.CLIENT, messages.ReportError, faults.report, "Report the caller's first CUDA error"),
    "fault.guards": Method(
        Privilege.CLIENT, messages.GuardRange, faults.guards, "Report the addresses of the caller's guards"
    ),
    "blame.list": Method(
        Privilege.OPERATOR, messages.Page, paged(faults.list_blame), "List quarantined, suspected and paused clients"
    ),
    "blame.pardon": Method(
        Privilege.OPERATOR, messages.BlameKey, faults.pardon, "End quarantine and suspicion of a key", changes=True
    ),
    "arena.create": Method(
        Privilege.ANYONE, arena_messages.CreateArena, arenas.create, "Make an empty arena", changes=True
    ),
    "arena.get": Method(Privilege.ARENA, arena_messages.ArenaName, arenas.get, "One arena", refusal=arenas.refusal_by_mode),
    "arena.list": Method(Privilege.SEEN, messages.Page, paged(arenas.list_arenas), "Arenas, by id"),
    "arena.open": Method(
        Privilege.ARENA,
        arena_messages.OpenArena,
        arenas.open_arena,
        "Hold an arena, to write or to read",
        changes=True,
        refusal=arenas.refusal_by_mode,
        gives=True,
        may_be_given_up=True,
    ),
    "arena.put": _of_holder(
        arena_messages.PutMemory, arenas.put, "Put memory into an arena", takes=lambda ask: len(ask.allocations)
    ),
    "arena.drop": _of_holder(arena_messages.DropMemory, arenas.drop, "Take memory out of an arena"),
    "arena.commit": _of_holder(
        arena_messages.CommitArena,
        arenas.commit,
        "Commit pending puts and drops atomically",
        changes=True,
        takes=lambda ask: ask.has_layout + ask.has_state,
    ),
    "arena.take": _of_holder(arena_messages.TakeMemory, arenas.take, "Get the committed memory of an arena", gives=True),
    "arena.layout": _of_holder(arena_messages.ArenaId, arenas.layout, "Get the committed layout of an arena", gives=True),
    "arena.keep_state": _of_holder(
        service_messages.KeepState, arenas.keep_state, "Keep a forward state with an arena", takes=lambda ask: 1
    ),
    "arena.state": _of_holder(arena_messages.ArenaId, arenas.state, "Get the forward state of an arena", gives=True),
    "arena.close": _of_holder(arena_messages.CloseArena, arenas.close, "Hold an arena no longer", changes=True),
    "arena.seal": _of_holder(arena_messages.SealArena, arenas.seal, "Make an arena unchangeable", changes=True),
    "arena.change": Method(
        Privilege.OWNER,
        arena_messages.ChangeArena,
        arenas.change,
        "Change what an arena may hold, who may open it, how long it stays",
        changes=True,
        refusal=arenas.refusal_of_others,
    ),
    "arena.remove": Method(
        Privilege.OWNER,
        arena_messages.ArenaName,
        arenas.remove,
        "Remove an arena with its memory",
        changes=True,
        refusal=arenas.refusal_of_others,
    ),
    "arena.make_room": Method(
        Privilege.ANYONE,
        arena_messages.MakeRoom,
        arenas.make_room,
        "Free memory of arenas that no process holds",
        changes=True,
        told=arenas.room_made,
    ),
    "service.enlist": Method(
        Privilege.ANYONE,
        service_messages.ServiceName,
        services.enlist,
        "Enlist this process as a member of a service",
        may_be_given_up=True,
    ),
    "service.join": _of_holder(service_messages.JoinService, services.join, "Become a member of a service", changes=True),
    "service.ready": _of_holder(service_messages.ServiceId, services.ready, "Report that the caller is ready to take over"),
    "service.follow": _of_holder(
        service_messages.FollowService, services.follow, "Wait for the caller's task", may_be_given_up=True
    ),
    "service.serving": _of_holder(service_messages.ServiceTerm, services.serving, "Report that one serves", changes=True),
    "service.yielded": _of_holder(
        service_messages.ServiceTerm, services.yielded, "Report that the caller has stopped writing", changes=True
    ),
    "service.failed": _of_holder(
        service_messages.FailedMember, services.failed, "Report that the caller cannot take over, or continue", changes=True
    ),
    "service.leave": _of_holder(service_messages.ServiceId, services.leave, "Be a member no longer", changes=True),
    "service.get": Method(
        Privilege.ARENA,
        service_messages.GetService,
        services.get,
        "One service",
        refusal=arenas.refusal_by_mode,
        may_be_given_up=True,
    ),
    "service.list": Method(Privilege.SEEN, messages.Page, paged(services.list_services), "Services, by the id of their arena"),
    "service.handover": Method(
        Privilege.OWNER,
        service_messages.Handover,
        services.handover,
        "Let another member serve",
        changes=True,
        refusal=arenas.refusal_of_others,
        told=services.told_handover,
        may_be_given_up=True,
    ),
    "service.change": Method(
        Privilege.OWNER,
        service_messages.ChangeService,
        services.change,
        "Change how many standbys a service is to have, and what each member gets",
        changes=True,
        refusal=arenas.refusal_of_others,
    ),
    "events.subscribe": Method(Privilege.SEEN, messages.Subscribe, events.subscribe, "Subscribe to events from now on"),
    "events.unsubscribe": Method(Privilege.ANYONE, messages.Nothing, events.unsubscribe, "End the subscription to events"),
}
