"""lease.create, renew, release, get, list."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from mpsd.api.authority import Peer
from mpsd.api.call import Call, Rows
from mpsd.api.ports import Ports
from mpsd.errors import BadRequest, MpsdError, NoSuchLease, NotAllowed, TooMany
from mpsd.model import sm_steps
from mpsd.model.describe import describe
from mpsd.model.device import Device
from mpsd.model.device_names import find_device
from mpsd.model.lease import FULL_PERCENT, NO_LIMITS, Lease, LeaseSpec, Selector, SelectorKind
from mpsd.model.reach import EVERYTHING
from mpsd.wire import lease_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import CreateLease, LeaseId, ListLeases, RenewLease

SELF = "self"  # the value of a pid selector for the caller
_ID = attrgetter("id")


def refusal(services: Ports, peer: Peer, ask: LeaseId | RenewLease) -> MpsdError | None:
    """Return why this user may not act on the lease: for other users it does not exist."""
    try:
        is_owner = _is_own(peer, services.leases.find(ask.id))
    except NoSuchLease:
        is_owner = False
    return None if is_owner else NoSuchLease(f"no lease has id {ask.id}")


def _is_own(peer: Peer, lease: Lease) -> bool:
    """Return whether it is the peer's.  A process in a container can have an operator's uid, and none of its leases for all."""
    return lease.owner_uid == peer.uid and (peer.is_operator or peer.bound is EVERYTHING or not lease.for_all_users)


def may_see(peer: Peer, lease: Lease) -> bool:
    return peer.is_operator or _is_own(peer, lease)


async def create(call: Call[CreateLease]) -> Map:
    """Create a lease.  An operator's lease serves processes of any user, unless owner_uid is given.

    The lease book checks the rest.
    """
    ask, services, peer = call.ask, call.services, call.peer
    if ask.owner_uid not in (None, peer.uid) and not peer.is_operator:
        raise NotAllowed(f"a lease for user {ask.owner_uid} needs an operator")
    given = {each: getattr(ask, each) for each in LeaseSpec.__struct_fields__ if hasattr(ask, each)}
    memory_bytes = ask.memory_bytes or NO_LIMITS
    found = {"selector": _selector(call), "sm_percent": _sm_percent(services, ask), "memory_bytes": memory_bytes}
    spec = LeaseSpec(**{**given, **found, "level": ask.level.value})
    owner_uid = peer.uid if ask.owner_uid is None else ask.owner_uid
    for_all_users = peer.is_operator and ask.owner_uid is None
    await services.leases.meet(owner_uid)
    return await _show_settled(call, services.leases.create(owner_uid, spec, for_all_users))


async def renew(call: Call[RenewLease]) -> Map:
    """Renew a lease, by default for the time that it was created with."""
    leases = call.services.leases
    ttl_seconds = call.ask.ttl_seconds or leases.find(call.ask.id).spec.ttl_seconds
    return await _show_settled(call, leases.renew(call.ask.id, ttl_seconds))


async def release(call: Call[LeaseId]) -> Map:
    return await _show_settled(call, call.services.leases.release(call.ask.id))


async def get(call: Call[LeaseId]) -> Map:
    return _show(call, call.services.leases.find(call.ask.id))


def list_leases(call: Call[ListLeases]) -> Rows[Lease]:
    """List the leases.  There may be ten thousand, so that those of earlier pages are skipped by bisection."""
    leases = sorted(call.services.leases.leases(), key=_ID)
    start = bisect_right(leases, -1 if call.ask.after is None else call.ask.after, key=_ID)
    asked = call.ask.state
    seen = filter(partial(may_see, call.peer), leases[start:])
    entries = ((each.id, each.owner_uid, each) for each in seen if asked in (None, each.state))
    return Rows(entries, partial(_shown, call.peer, _clients(call.services), call.services.board.devices))


async def _show_settled(call: Call[Any], lease: Lease) -> Map:
    """Return the lease once the change would survive a power cut."""
    await call.services.leases.settled()
    return _show(call, lease)


def _show(call: Call[Any], lease: Lease) -> Map:
    return _shown(call.peer, _clients(call.services), call.services.board.devices, lease)


def _shown(peer: Peer, clients: Mapping[int | None, int], devices: Sequence[Device], lease: Lease) -> Map:
    return lease_results.lease(lease, clients.get(lease.id, 0), _is_own(peer, lease), devices)


def _clients(services: Ports) -> Mapping[int | None, int]:
    """Return how many processes run under each lease."""
    return Counter(grant.lease_id for grant in services.leases.grants().values())


def _selector(call: Call[CreateLease]) -> Selector:
    """Return the selector; one for a pid has the start time too, which distinguishes the process from later ones with its pid.

    Raises NotAllowed, BadRequest.
    """
    asked, peer = call.ask.selector, call.peer
    if asked.kind is SelectorKind.UID and asked.value != str(peer.uid) and not peer.is_operator:
        raise NotAllowed(f"a lease for the processes of user {asked.value[:20]} needs an operator")
    has_reach = peer.is_operator or peer.bound is EVERYTHING
    if asked.kind in (SelectorKind.UID, SelectorKind.CGROUP) and not has_reach:  # those name processes outside its container
        raise NotAllowed(f"a lease by {asked.kind.value}, asked for in a container, needs an operator: name a pid or a token")
    if asked.kind is not SelectorKind.PID:
        return Selector(asked.kind, asked.value)
    pid = peer.pid if asked.value == SELF else _decimal(asked.value)
    not_allowed = f"a lease for process {pid}, which is another user's, or outside of your container, needs an operator"
    is_foreign = asked.value != SELF and call.services.uid_of(pid) not in (None, peer.uid)
    if is_foreign and not peer.is_operator:  # to read it might keep root's unread
        raise NotAllowed(not_allowed)
    try:
        found = call.services.find_process(pid) if pid else None
    except OSError as exc:
        raise TooMany(f"process {pid} cannot be read now: {exc.strerror}") from None
    if asked.value == SELF and found != peer.process:  # the connected process has ended, and another has its pid
        found = None
    if found is None or asked.start_time not in (0, found.start_time):
        since = f" that started at {asked.start_time}" if asked.start_time else ""
        raise BadRequest(f"no process in mpsd's pid namespace has pid {describe(asked.value)}{since}")
    if asked.value != SELF and not peer.may_name(call.services.owner_of(found), pid, call.services.namespaces_of):
        raise NotAllowed(not_allowed)
    return Selector(SelectorKind.PID, str(found.pid), found.start_time)


def _decimal(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else 0


def _sm_percent(services: Ports, ask: CreateLease) -> float:
    """Return the SM percentage; for an SM count, the one that gives at least that many SMs.

    The default is all SMs, or none for a lease that names memory.  Raises BadRequest.
    """
    if ask.sm_count is None:
        unsaid = 0.0 if ask.memory_bytes else FULL_PERCENT  # a lease that names memory alone reserves no SMs
        return unsaid if ask.sm_percent is None else ask.sm_percent
    if ask.sm_percent is not None:
        raise BadRequest("sm_percent and sm_count mean the same: give one of them")
    devices = services.board.devices
    wanted = [find_device(devices, name) for name in ask.gpus] or devices
    totals = {device.multiprocessors for device in wanted}
    total = totals.pop() if len(totals) == 1 else 0
    if not total:
        raise BadRequest("sm_count needs GPUs with equal and known numbers of SMs (see device.list): give sm_percent")
    if ask.sm_count > total:
        raise BadRequest(f"parameter sm_count: found {ask.sm_count}; these GPUs have {total}")
    return max(sm_steps.of_count(ask.sm_count, ask.processes, device) for device in wanted)
