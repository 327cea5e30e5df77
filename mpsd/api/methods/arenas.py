"""arena.create, get, list, open, put, drop, commit, take, layout, keep_state, state, close, seal, change, remove, make_room.

A process holds an arena, not a connection: it may reconnect.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mpsd.api.authority import Peer
from mpsd.api.call import Call, Rows
from mpsd.api.ports import Ports
from mpsd.errors import KeeperFailed, MpsdError, NoSuchArena, NoSuchClient, NotAllowed
from mpsd.host import processes
from mpsd.model import arena_names
from mpsd.model.arena import Access, Allocation, Arena, ArenaSpec
from mpsd.model.arena_mode import may
from mpsd.model.device_names import find_device
from mpsd.model.reach import EVERYTHING
from mpsd.vault.arenas import Arenas
from mpsd.wire import arena_results
from mpsd.wire.arena_messages import (
    ArenaId,
    ArenaName,
    ChangeArena,
    CloseArena,
    CommitArena,
    CreateArena,
    DropMemory,
    MakeRoom,
    OpenArena,
    PutMemory,
    SealArena,
    TakeMemory,
)
from mpsd.wire.fields import Map
from mpsd.wire.messages import Page
from mpsd.wire.service_messages import KeepState

_NOBODY = -1  # the uid of no user
_SERIAL = 0  # placeholder: the vault assigns the serial
_MOST_NAMES = 256  # as many as fit into a datagram


# -- permissions ---------------------------------------------------------------------------------------------------------


def refusal_by_mode(services: Ports, peer: Peer, ask: ArenaName | OpenArena) -> MpsdError | None:
    """Return why the arena's mode refuses the peer.  An arena that it may not see is reported as absent."""
    arena = find_seen(services, peer, ask)
    access = ask.access if isinstance(ask, OpenArena) else None
    if arena is None:
        return absent(ask)
    if access is not None and not _may(peer, arena, access):
        return NotAllowed(f"arena {arena.name} is user {arena.owner_uid}'s; its mode {arena.mode:03o} lets you not {access} it")
    return None


def refusal_of_others(services: Ports, peer: Peer, ask: ArenaName | ChangeArena) -> MpsdError | None:
    arena = find_seen(services, peer, ask)
    if arena is None:
        return absent(ask)
    return None if arena.owner_uid == peer.uid else NotAllowed(f"arena {arena.name} is user {arena.owner_uid}'s")


def refusal_unless_holder(services: Ports, peer: Peer, ask: Any) -> MpsdError | None:
    """Refuse a peer that neither has the arena open nor may see it.

    A holder continues even after the mode was changed.  The vault refuses others who may see it.
    """
    arena = _find(services, ask)
    is_holder = arena is not None and peer.process is not None and peer.process in (arena.writer, *arena.readers)
    return None if is_holder or find_seen(services, peer, ask) is not None else absent(ask)


def _find(services: Ports, ask: Any) -> Arena | None:
    arenas = arenas_of(services)
    try:
        return find_named(arenas, ask.name) if hasattr(ask, "name") else arenas.find_id(ask.id)
    except NoSuchArena:
        return None


def find_seen(services: Ports, peer: Peer, ask: Any) -> Arena | None:
    """Return the arena; None if it does not exist, or the peer may not see it."""
    arena = _find(services, ask)
    return arena if arena is not None and may_see(peer, arena) else None


def absent(ask: Any) -> MpsdError:
    return NoSuchArena(f"no arena is called {ask.name}" if hasattr(ask, "name") else f"no arena has id {ask.id}")


def may_see(peer: Peer, arena: Arena) -> bool:
    return peer.is_operator or arena.owner_uid == peer.uid or _may(peer, arena, Access.READ)


def may_write(peer: Peer, arena: Arena) -> bool:
    return peer.is_operator or _may(peer, arena, Access.WRITE)


def _may(peer: Peer, arena: Arena, access: Access) -> bool:
    return may(access, arena.mode, arena.owner_uid, arena.owner_gid, peer.uid, peer.gids)


def arenas_of(services: Ports) -> Arenas:
    """Return the vault.  Raises KeeperFailed if this mpsd runs without it."""
    if services.arenas is None:
        raise KeeperFailed("this mpsd keeps no memory")
    return services.arenas


def find_named(arenas: Arenas, text: str) -> Arena:
    """Find an arena by `NAME` or `UID:NAME`.  Raises NoSuchArena."""
    with suppress(NoSuchArena):
        arena = arenas.find(arena_names.split(text)[1])
        if arena_names.is_meant(text, arena):
            return arena
    raise NoSuchArena(f"no arena is called {text}")


def check_whose(peer: Peer, text: str, arena: Arena) -> None:
    """Raise NotAllowed if this name does not permit the use: a name without a uid is for arenas of the caller and of root,
    as far as no other container made them.

    Check it before a process uses an arena, for operators too.
    """
    if why := arena_names.why_not_use(text, arena, peer.uid, peer.bound):
        raise NotAllowed(why)


# -- handlers ------------------------------------------------------------------------------------------------------------


async def create(call: Call[CreateArena]) -> Map:
    """Make an arena for a process that lives: its quotas depend on its pid namespace and its lease.  Raises NoSuchClient."""
    ask, peer, process = call.ask, call.peer, call.process()
    gpu = find_device(call.services.board.devices, ask.gpu).uuid
    owner, name = arena_names.split(ask.name)
    if owner not in (None, peer.uid):
        raise NotAllowed(f"arena {ask.name} does not exist, and you are user {peer.uid}: user {owner} has to make it")
    spec = ArenaSpec(name, gpu, ask.capacity_bytes, ask.window_bytes, ask.mode, ask.ttl_seconds)
    namespace = EVERYTHING if peer.is_operator else peer.bound
    uids = None if namespace is EVERYTHING else _uids_to_take(call)
    made = await arenas_of(call.services).create(spec, peer.uid, peer.gid, process, namespace, uids)
    return arena_results.arena(made)


def _uids_to_take(call: Call[CreateArena]) -> Sequence[tuple[int, int]]:
    """Return the uids that the caller can take in its user namespace.  Raises NoSuchClient."""
    process = call.process()
    try:
        return processes.uids_to_take(process.pid)
    except OSError:
        raise NoSuchClient(f"the user namespace of pid {process.pid} cannot be read: has it ended?") from None
    finally:
        call.process()  # otherwise they are another process's


async def get(call: Call[ArenaName]) -> Map:
    return arena_results.arena(find_named(arenas_of(call.services), call.ask.name))


def list_arenas(call: Call[Page]) -> Rows[Arena]:
    peer = call.peer
    found = arenas_of(call.services).arenas()
    return Rows(((each.id, None if may_see(peer, each) else _NOBODY, each) for each in found), arena_results.arena)


async def open_arena(call: Call[OpenArena]) -> Map:
    arenas, ask = arenas_of(call.services), call.ask
    found, process = find_named(arenas, ask.name), call.process()
    check_whose(call.peer, ask.name, found)

    def check() -> None:
        refusal = None if call.peer.is_operator else refusal_by_mode(call.services, call.peer, ask)
        if refusal is not None:
            raise refusal

    arena = await arenas.open(found.id, ask.access, process, ask.wait_seconds, check, call.peer.uid)
    openings = arenas.openings(arena.id, process)
    if not ask.takes:
        return {**arena_results.arena(arena), "openings": openings}
    try:
        taken = await arenas.take(arena.id, process, None, ask.takes, ask.known, with_layout=True)
    except MpsdError:
        with suppress(MpsdError):
            await arenas.close(arena.id, process, 1)
        raise
    call.given.give(taken.fds)
    more = {"openings": openings, "has_layout": taken.has_layout}
    return {**arena_results.arena(taken.arena), **arena_results.portion(taken), **more}


async def put(call: Call[PutMemory]) -> Map:
    ask, process = call.ask, call.process()
    allocations = [Allocation(offset, size, _SERIAL) for offset, size in ask.allocations]
    arenas = arenas_of(call.services)
    return _used(await arenas.put(ask.id, ask.generation, process, allocations, call.taken.take()))


async def drop(call: Call[DropMemory]) -> Map:
    ask = call.ask
    return _used(await arenas_of(call.services).drop(ask.id, ask.generation, call.process(), ask.offsets))


async def commit(call: Call[CommitArena]) -> Map:
    ask, process = call.ask, call.process()
    arenas = arenas_of(call.services)
    fds = call.taken.take() if ask.has_layout or ask.has_state else []
    layout, state = fds[0] if ask.has_layout else None, fds[-1] if ask.has_state else None
    arena = await arenas.commit(ask.id, ask.generation, process, layout, state)
    facts = {"layout_hash": arena.layout_hash, "allocations": arena.allocations, "used_bytes": arena.used_bytes}
    return {**facts, "commit": arena.commit, "state_serial": arena.state_serial}


async def take(call: Call[TakeMemory]) -> Map:
    ask = call.ask
    taken = await arenas_of(call.services).take(ask.id, call.process(), ask.after, ask.limit, ask.known)
    call.given.give(taken.fds)
    return arena_results.portion(taken)


async def layout(call: Call[ArenaId]) -> Map:
    """Return the committed layout; without a descriptor if none was committed yet."""
    arena, fd = await arenas_of(call.services).layout(call.ask.id, call.process())
    call.given.give([fd] if fd >= 0 else [])
    return {"layout_hash": arena.layout_hash, "layout_bytes": arena.layout_bytes}


async def keep_state(call: Call[KeepState]) -> Map:
    ask, process = call.ask, call.process()
    arenas = arenas_of(call.services)
    return {"state_serial": (await arenas.keep_state(ask.id, ask.generation, process, call.taken.take()[0])).state_serial}


async def state(call: Call[ArenaId]) -> Map:
    """Return the forward state; without a descriptor if none is kept."""
    found = await arenas_of(call.services).state(call.ask.id, call.process())
    if found is None:
        return {"state_serial": 0, "generation": 0}
    kept, fd = found
    call.given.give([fd])
    return {"state_serial": kept.serial, "generation": kept.generation}


async def close(call: Call[CloseArena]) -> Map:
    return arena_results.arena(await arenas_of(call.services).close(call.ask.id, call.process(), call.ask.openings))


async def seal(call: Call[SealArena]) -> Map:
    return arena_results.arena(await arenas_of(call.services).seal(call.ask.id, call.ask.generation, call.process()))


async def change(call: Call[ChangeArena]) -> Map:
    ask = call.ask
    return arena_results.arena(await arenas_of(call.services).change(ask.id, ask.capacity_bytes, ask.mode, ask.ttl_seconds))


async def remove(call: Call[ArenaName]) -> Map:
    arenas = arenas_of(call.services)
    return arena_results.arena(await arenas.remove(find_named(arenas, call.ask.name).id))


async def make_room(call: Call[MakeRoom]) -> Map:
    """Evict arenas.  The answer names those evicted arenas that the caller may see."""
    peer = call.peer
    gpu = find_device(call.services.board.devices, call.ask.gpu).uuid
    evicted, why = await arenas_of(call.services).make_room(gpu, call.ask.bytes, peer.uid, is_operator=peer.is_operator)
    names = [each.name for each in evicted if may_see(peer, each)]
    return {"freed_bytes": sum(each.used_bytes for each in evicted), "names": names[:_MOST_NAMES], "why": why}


def room_made(result: Mapping[str, Any]) -> str:
    """Describe the result for the audit."""
    return f"{result['freed_bytes']} bytes, of {', '.join(result['names']) or 'nobody'}"


def _used(arena: Arena) -> Map:
    return {"used_bytes": arena.used_bytes}
