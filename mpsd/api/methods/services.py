"""service.enlist, join, ready, follow, serving, yielded, failed, leave, replicate; get, list, handover, move, change.

A process is a member, not a connection: it may reconnect.
"""

from contextlib import suppress

from mpsd.api.call import Call, Rows
from mpsd.api.methods.arenas import absent, arenas_of, check_whose, find_named, find_seen, may_see, may_write
from mpsd.api.ports import Ports
from mpsd.errors import BadRequest, KeeperFailed, NoRoom, NoSuchArena, NotAllowed
from mpsd.model.arena import Arena
from mpsd.model.arena_names import split
from mpsd.model.device_names import find_device
from mpsd.model.process import ProcessId
from mpsd.model.quantities import render_size
from mpsd.model.reach import reaches
from mpsd.model.service import Instruction, LastRecord, Order, ReplicaReport, ServiceSettings, ServiceView
from mpsd.services.requests import ServiceRequests
from mpsd.wire import service_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import Page
from mpsd.wire.service_messages import (
    ChangeService,
    FailedMember,
    FollowService,
    GetService,
    Handover,
    JoinService,
    MoveService,
    ReplicateService,
    ServiceId,
    ServiceName,
    ServiceTerm,
    YieldedTerm,
)

_NOBODY = -1  # the uid of no user


def failover_of(services: Ports) -> ServiceRequests:
    """Return the failover services.  Raises KeeperFailed if this mpsd runs without them."""
    if services.failover is None:
        raise KeeperFailed("this mpsd has no vault, and so no services")
    return services.failover


# -- members -------------------------------------------------------------------------------------------------------------


async def enlist(call: Call[ServiceName]) -> Map:
    """Of an arena that is not there yet, or that the asker may not see, the asker will be the owner, and names no other one."""
    peer, process = call.peer, call.process()
    owner_uid, (named_uid, name) = peer.uid, split(call.ask.name)
    arena = find_seen(call.services, peer, call.ask)
    if arena is not None:
        check_whose(peer, call.ask.name, arena)
        if may_write(peer, arena):
            owner_uid = arena.owner_uid
    elif named_uid not in (None, peer.uid):
        raise absent(call.ask)
    return {"environment": dict(await failover_of(call.services).enlist(name, owner_uid, process, peer.uid))}


async def join(call: Call[JoinService]) -> Map:
    ask = call.ask
    arena = arenas_of(call.services).find_id(ask.id)
    if not may_write(call.peer, arena):
        raise NotAllowed(f"arena {arena.name} is user {arena.owner_uid}'s; its mode {arena.mode:03o} lets you not write it")
    joined = await failover_of(call.services).join(ask.id, call.process(), ask.rank, ask.heartbeat_seconds)
    return service_results.instruction(joined)


async def ready(call: Call[ServiceId]) -> Map:
    return service_results.instruction(failover_of(call.services).ready(call.ask.id, call.process()))


async def follow(call: Call[FollowService]) -> Map:
    ask = call.ask

    def answer(told: Instruction) -> None:
        call.answer(service_results.instruction(told))

    told = await failover_of(call.services).follow(ask.id, call.process(), ask.after, ask.wait_seconds, answer)
    return service_results.instruction(told)


async def serving(call: Call[ServiceTerm]) -> Map:
    failover_of(call.services).serving(call.ask.id, call.ask.generation, call.process())
    return {}


async def yielded(call: Call[YieldedTerm]) -> Map:
    ask = call.ask
    last = None if ask.state_generation is None else LastRecord(ask.state_generation, ask.sequence, ask.why_no_image)
    told = failover_of(call.services).yielded(ask.id, ask.generation, call.process(), last)
    return service_results.instruction(told)


async def failed(call: Call[FailedMember]) -> Map:
    failover_of(call.services).failed(call.ask.id, call.process(), call.ask.why)
    return {}


async def leave(call: Call[ServiceId]) -> Map:
    failover_of(call.services).leave(call.ask.id, call.process())
    return {}


async def replicate(call: Call[ReplicateService]) -> Map:
    ask = call.ask
    of = find_named(arenas_of(call.services), ask.of)
    if not may_see(call.peer, of):
        raise NoSuchArena(f"no arena is called {ask.of}")
    check_whose(call.peer, ask.of, of)
    if not may_write(call.peer, of):
        raise NotAllowed(f"arena {of.name} is user {of.owner_uid}'s; its mode {of.mode:03o} does not let you write it")
    sizes = ask.behind_bytes, ask.bound_seconds, ask.has_gpu_failed
    report = ReplicaReport(ask.at, ask.state_generation, ask.sequence, *sizes)
    replicas = failover_of(call.services).replicas
    told = await replicas.follow(ask.id, ask.generation, call.process(), of, report, ask.wait_seconds)
    return service_results.replica_order(told)


def told_replaced(result: Map) -> str:
    """Describe the result for the audit; empty where the service's name stays with its arena."""
    return f"it has the service's name now: {result['why']}" if result["order"] == Order.SERVE.value else ""


# -- status, and the owner's changes ---------------------------------------------------------------------------------------


async def get(call: Call[GetService]) -> Map:
    ask, failover, arena = call.ask, failover_of(call.services), _meant(call)
    found: ServiceView | None = None
    with suppress(NoSuchArena):
        found = await failover.get(arena.id, ask.after, ask.wait_seconds)
    now = _meant(call)
    if now.id != arena.id and not may_see(call.peer, now):
        raise NoSuchArena(f"no arena is called {ask.name}")
    if found is None or now.id != arena.id:  # a replica has got the name meanwhile
        found = await failover.get(now.id, None, 0.0)
    return service_results.service(found)


def _meant(call: Call[GetService]) -> Arena:
    """Return the arena that has the name now.  Raises NoSuchArena, NotAllowed."""
    arena = find_named(arenas_of(call.services), call.ask.name)
    # A starter obeys the settings.  An operator's compares the owner itself, but root of a container has an operator's uid.
    if not call.peer.is_operator or arena.pid_namespace is not None:
        check_whose(call.peer, call.ask.name, arena)
    return arena


def list_services(call: Call[Page]) -> Rows[int]:
    arenas = {arena.id: arena for arena in arenas_of(call.services).arenas() if may_see(call.peer, arena)}
    failover = failover_of(call.services)
    entries = ((each, None if each in arenas else _NOBODY, each) for each in failover.ids())
    return Rows(entries, lambda each: service_results.service(failover.view(each)))


def _check_reach(
    call: Call[Handover] | Call[MoveService] | Call[ChangeService], arena: Arena, *others: ProcessId
) -> None:
    """Refuse what can end members, or these other processes, to a caller that may not end all of them: the uid of a container's
    root proves nothing.  Raises NotAllowed.
    """
    if call.peer.is_operator:
        return
    members = (*failover_of(call.services).members(arena.id), *others)
    if not all(reaches(call.peer.bound, call.services.namespaces_of(each.pid)) for each in members):
        raise NotAllowed(f"service {arena.name} has members outside of your container, which this could end")


async def handover(call: Call[Handover]) -> Map:
    ask = call.ask
    arena = find_named(arenas_of(call.services), ask.name)
    _check_reach(call, arena)
    done = await failover_of(call.services).handover(arena.id, ask.to_pid, ask.wait_seconds, ask.from_pid)
    return service_results.HANDED_OVER.of(done)


def told_handover(result: Map) -> str:
    """Describe the result for the audit."""
    to = "no standby" if result["to_pid"] is None else f"pid {result['to_pid']}"
    return f"pid {result['from_pid']} to {to} in {result['seconds']:.3f} s"


def _check_share(call: Call[MoveService], process: ProcessId, view: ServiceView, gpu: str) -> None:
    """Refuse a move to a process with less of the GPU than is reserved for each member.  Raises NoRoom."""
    if (grant := call.services.leases.grant_of(process)) is None:
        return
    whose = f"service {call.ask.name} cannot move to GPU {gpu}: pid {process.pid}, which keeps its replica, has"
    percent = view.settings.sm_percent or 0.0
    if view.share is not None:
        percent = min(percent, view.share.sm_percent)  # an elastic one: what it was dealt is what its members have
    if grant.sm_percent < percent:
        raise NoRoom(f"{whose} {grant.sm_percent:g} % of the SMs there, and each member is to have {percent:g} %")
    limit, wanted = grant.memory_bytes.get(gpu), view.settings.memory_bytes or 0
    if limit is not None and limit < wanted:
        raise NoRoom(f"{whose} {render_size(limit)} there, and each member is to have {render_size(wanted)}")


async def move(call: Call[MoveService]) -> Map:
    ask, failover = call.ask, failover_of(call.services)
    arena = find_named(arenas_of(call.services), ask.name)
    gpu = find_device(call.services.board.devices, ask.gpu).uuid
    view = failover.view(arena.id) if arena.id in failover.ids() else None
    replica = failover.replicas.on(arena.id, gpu)
    _check_reach(call, arena, *(() if replica is None else (replica.process,)))  # one that does not serve in time is ended
    if view is not None and replica is not None:
        _check_share(call, replica.process, view, gpu)
    return service_results.service(failover.move(arena.id, gpu, ask.wait_seconds))


def told_move(result: Map) -> str:
    """Describe the result for the audit."""
    return f"from {result['move']['from_gpu']} to {result['move']['to_gpu']}"


def _check_memory(call: Call[ChangeService], gpu: str) -> None:
    """Refuse memory that no GPU of the service has: otherwise it would only show as one standby fewer.  Raises BadRequest."""
    device = next((device for device in call.services.board.devices if device.uuid == gpu), None)
    if device is not None and (call.ask.memory_bytes or 0) > device.total_bytes:
        raise BadRequest(f"memory_bytes: found {call.ask.memory_bytes}; {gpu} has {device.total_bytes}")


async def change(call: Call[ChangeService]) -> Map:
    ask, failover = call.ask, failover_of(call.services)
    arena = find_named(arenas_of(call.services), ask.name)
    _check_reach(call, arena)
    _check_memory(call, arena.gpu)
    old = failover.settings(arena.id)
    wanted = ServiceSettings(
        standbys=old.standbys if ask.standbys is None else ask.standbys,
        sm_percent=old.sm_percent if ask.sm_percent is None else ask.sm_percent or None,
        memory_bytes=old.memory_bytes if ask.memory_bytes is None else ask.memory_bytes or None,
        heartbeat_seconds=old.heartbeat_seconds if ask.heartbeat_seconds is None else ask.heartbeat_seconds,
        until_done=old.until_done if ask.until_done is None else ask.until_done,
        elastic=old.elastic if ask.elastic is None else ask.elastic,
    )
    return service_results.service(failover.change(arena.id, wanted))
