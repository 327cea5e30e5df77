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
from mpsd.wire import (
    arena_messages,
    arena_results,
    daemon_results,
    fault_results,
    lease_results,
    messages,
    service_messages,
    service_results,
)
from mpsd.wire.fields import NOTHING, Result

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
    the result for the audit, if "done" is not enough; without `changes`, only calls with a description that is not empty are
    audited.  takes: the number of descriptors with the request; None: never any.  gives: the result may carry descriptors.
    may_be_given_up: the call may wait long, and is cancelled when the peer hangs up.
    """

    privilege: Privilege
    ask: type
    result: Result
    run: Handler
    help: str
    changes: bool = False
    refusal: Refuses | None = None
    told: Callable[[Mapping[str, Any]], str] | None = None
    takes: Callable[[Any], int] | None = None
    gives: bool = False
    may_be_given_up: bool = False


def _of_lease(ask: type, run: Handler, help: str, *, changes: bool = False) -> Method:
    return Method(Privilege.OWNER, ask, lease_results.LEASE, run, help, changes, leases.refusal)


def _of_client(ask: type, result: Result, run: Handler, help: str, *, changes: bool = False) -> Method:
    return Method(Privilege.OWNER, ask, result, run, help, changes, clients.refusal)


def _of_holder(ask: type, result: Result, run: Handler, help: str, **more: Any) -> Method:
    return Method(Privilege.HOLDER, ask, result, run, help, refusal=arenas.refusal_unless_holder, **more)


def _of_arena(ask: type, result: Result, run: Handler, help: str, **more: Any) -> Method:
    return Method(Privilege.ARENA, ask, result, run, help, refusal=arenas.refusal_by_mode, **more)


def _of_owner(ask: type, result: Result, run: Handler, help: str, **more: Any) -> Method:
    return Method(Privilege.OWNER, ask, result, run, help, changes=True, refusal=arenas.refusal_of_others, **more)


HELLO = "hello"  # answered by the connection itself, once

METHODS: dict[str, Method] = {
    "status": Method(Privilege.ANYONE, messages.Nothing, daemon_results.STATUS, daemon.status,
        "Version, uptime and totals of mpsd"),
    "health": Method(Privilege.ANYONE, messages.Nothing, daemon_results.HEALTH, daemon.health,
        "Whether a client that comes would be served"),
    "device.list": Method(Privilege.ANYONE, messages.Page, daemon_results.DEVICE, paged(domains.list_devices),
        "The GPUs of the daemon"),
    "lease.create": Method(Privilege.ANYONE, messages.CreateLease, lease_results.LEASE, leases.create,
        "Make a lease", changes=True),
    "lease.renew": _of_lease(messages.RenewLease, leases.renew, "Let a lease last longer", changes=True),
    "lease.release": _of_lease(messages.LeaseId, leases.release, "Give a lease back", changes=True),
    "lease.get": _of_lease(messages.LeaseId, leases.get, "One lease"),
    "lease.list": Method(Privilege.SEEN, messages.ListLeases, lease_results.LEASE, paged(leases.list_leases), "Leases, by id"),
    "queue.list": Method(Privilege.SEEN, messages.Page, lease_results.WAITING, paged(queue.list_queue),
        "Leases and clients that wait, by their position"),
    "client.list": Method(Privilege.SEEN, messages.Page, lease_results.CLIENT, paged(clients.list_clients), "Clients, by pid"),
    "client.why": _of_client(messages.ClientId, lease_results.WHY, clients.why,
        "The rule behind a client's grant, and why it waits"),
    "client.terminate": _of_client(messages.ClientId, lease_results.TERMINATED, clients.terminate,
        "End the outstanding GPU work of a client", changes=True),
    "client.stop": Method(Privilege.SEEN, messages.StopClient, lease_results.STOPPED, stop.stop,
        "End client processes, their GPU work first", changes=True, told=stop.told),
    "client.move": Method(Privilege.OPERATOR, messages.MoveClient, lease_results.MOVED, clients.move,
        "Choose the domain of a client's next start", changes=True),
    "domain.list": Method(Privilege.ANYONE, messages.Page, daemon_results.DOMAIN, paged(domains.list_domains),
        "Fault domains, by number"),
    "domain.create": Method(Privilege.OPERATOR, messages.CreateDomain, daemon_results.DOMAIN, domains.create,
        "Begin a fault domain", changes=True),
    "domain.drain": Method(Privilege.OPERATOR, messages.DomainName, daemon_results.DRAINED, domains.drain,
        "Close a domain to clients, and end it when empty", changes=True),
    "domain.recycle": Method(Privilege.OPERATOR, messages.DomainName, daemon_results.RECYCLED, domains.recycle,
        "Replace the servers of an empty domain", changes=True),
    "limits.get": Method(Privilege.ANYONE, messages.Nothing, daemon_results.LIMITS, limits.get,
        "The limits of clients without a lease"),
    "limits.set": Method(Privilege.OPERATOR, messages.SetLimits, daemon_results.LIMITS, limits.set_limits,
        "Set the limits of clients without a lease", changes=True),
    "fault.list": Method(Privilege.ANYONE, messages.ListIncidents, fault_results.INCIDENT, paged(faults.list_incidents),
        "Faults, each put together from its events"),
    "fault.get": Method(Privilege.ANYONE, messages.IncidentNumber, fault_results.REPORT, faults.get,
        "Everything that is known of one fault"),
    "fault.report": Method(Privilege.CLIENT, messages.ReportError, fault_results.REPORTED, faults.report,
        "Report the caller's first CUDA error"),
    "fault.guards": Method(Privilege.CLIENT, messages.GuardRange, fault_results.GUARDED, faults.guards,
        "Report the addresses of the caller's guards"),
    "blame.list": Method(Privilege.OPERATOR, messages.Page, fault_results.STANDING, paged(faults.list_blame),
        "List quarantined, suspected and paused clients"),
    "blame.pardon": Method(Privilege.OPERATOR, messages.BlameKey, fault_results.STANDING, faults.pardon,
        "End quarantine and suspicion of a key", changes=True),
    "arena.create": Method(Privilege.ANYONE, arena_messages.CreateArena, arena_results.ARENA, arenas.create,
        "Make an empty arena", changes=True),
    "arena.get": _of_arena(arena_messages.ArenaName, arena_results.ARENA, arenas.get, "One arena"),
    "arena.list": Method(Privilege.SEEN, messages.Page, arena_results.ARENA, paged(arenas.list_arenas), "Arenas, by id"),
    "arena.open": _of_arena(arena_messages.OpenArena, arena_results.OPENED, arenas.open_arena,
        "Hold an arena, to write or to read", changes=True, gives=True, may_be_given_up=True),
    "arena.put": _of_holder(arena_messages.PutMemory, arena_results.USE, arenas.put,
        "Put memory into an arena", takes=lambda ask: len(ask.allocations)),
    "arena.drop": _of_holder(arena_messages.DropMemory, arena_results.USE, arenas.drop, "Take memory out of an arena"),
    "arena.commit": _of_holder(arena_messages.CommitArena, arena_results.COMMITTED, arenas.commit,
        "Commit pending puts and drops atomically", changes=True, takes=lambda ask: ask.has_layout + ask.has_state),
    "arena.take": _of_holder(arena_messages.TakeMemory, arena_results.TAKEN, arenas.take,
        "Get the committed memory of an arena", gives=True),
    "arena.layout": _of_holder(arena_messages.ArenaId, arena_results.LAYOUT, arenas.layout,
        "Get the committed layout of an arena", gives=True),
    "arena.keep_state": _of_holder(service_messages.KeepState, arena_results.STATE_KEPT, arenas.keep_state,
        "Keep a forward state with an arena", takes=lambda ask: 1),
    "arena.state": _of_holder(arena_messages.ArenaId, arena_results.KEPT_STATE, arenas.state,
        "Get the forward state of an arena", gives=True),
    "arena.close": _of_holder(arena_messages.CloseArena, arena_results.ARENA, arenas.close,
        "Hold an arena no longer", changes=True),
    "arena.seal": _of_holder(arena_messages.SealArena, arena_results.ARENA, arenas.seal,
        "Make an arena unchangeable", changes=True),
    "arena.change": _of_owner(arena_messages.ChangeArena, arena_results.ARENA, arenas.change,
        "Change what an arena may hold, who may open it, how long it stays"),
    "arena.remove": _of_owner(arena_messages.ArenaName, arena_results.ARENA, arenas.remove, "Remove an arena with its memory"),
    "arena.make_room": Method(Privilege.ANYONE, arena_messages.MakeRoom, arena_results.ROOM_MADE, arenas.make_room,
        "Free memory of arenas that no process holds", changes=True, told=arenas.room_made),
    "service.enlist": Method(Privilege.ANYONE, service_messages.ServiceName, service_results.ENLISTED, services.enlist,
        "Enlist this process as a member of a service", may_be_given_up=True),
    "service.join": _of_holder(service_messages.JoinService, service_results.INSTRUCTION, services.join,
        "Become a member of a service", changes=True),
    "service.ready": _of_holder(service_messages.ServiceId, service_results.INSTRUCTION, services.ready,
        "Report that the caller is ready to take over"),
    "service.follow": _of_holder(service_messages.FollowService, service_results.INSTRUCTION, services.follow,
        "Wait for the caller's task", may_be_given_up=True),
    "service.serving": _of_holder(service_messages.ServiceTerm, NOTHING, services.serving,
        "Report that one serves", changes=True),
    "service.yielded": _of_holder(service_messages.YieldedTerm, service_results.INSTRUCTION, services.yielded,
        "Report that the caller has stopped writing", changes=True),
    "service.failed": _of_holder(service_messages.FailedMember, NOTHING, services.failed,
        "Report that the caller cannot take over, or continue", changes=True),
    "service.leave": _of_holder(service_messages.ServiceId, NOTHING, services.leave, "Be a member no longer", changes=True),
    "service.get": _of_arena(service_messages.GetService, service_results.SERVICE, services.get,
        "One service", may_be_given_up=True),
    "service.list": Method(Privilege.SEEN, messages.Page, service_results.SERVICE, paged(services.list_services),
        "Services, by the id of their arena"),
    "service.handover": _of_owner(service_messages.Handover, service_results.HANDED_OVER, services.handover,
        "Let another member serve", told=services.told_handover, may_be_given_up=True),
    "service.move": _of_owner(service_messages.MoveService, service_results.SERVICE, services.move,
        "Begin to move a service to another GPU", told=services.told_move),
    "service.change": _of_owner(service_messages.ChangeService, service_results.SERVICE, services.change,
        "Change how many standbys a service is to have, and what each member gets"),
    "service.replicate": _of_holder(service_messages.ReplicateService, service_results.REPLICA_ORDER, services.replicate,
        "Report how far a replica of a service is, and wait for its turn", told=services.told_replaced, may_be_given_up=True),
    "events.subscribe": Method(Privilege.SEEN, messages.Subscribe, daemon_results.SUBSCRIBED, events.subscribe,
        "Subscribe to events from now on"),
    "events.unsubscribe": Method(Privilege.ANYONE, messages.Nothing, daemon_results.UNSUBSCRIBED, events.unsubscribe,
        "End the subscription to events"),
}  # fmt: skip
