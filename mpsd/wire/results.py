"""Convert leases, grants, domains, arenas and others to the maps of results; docs/protocol.md, "Methods", has every field."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpsd.model import sm_steps
from mpsd.model.arena import Arena, Portion
from mpsd.model.device import Device
from mpsd.model.domain import Defaults, DomainView, ServerView
from mpsd.model.lease import Grant, Lease, Selector, SelectorKind
from mpsd.model.process import ProcessId

Map = Mapping[str, Any]

_MOST_READERS = 1024  # in the answer, which has to fit into a datagram


def lease(of: Lease, clients: int, is_owner: bool, devices: Sequence[Device]) -> Map:
    """`is_owner`: the asker may see the token, which is the right to the lease.  devices: of the daemon."""
    spec = of.spec
    own = [device for device in devices if not spec.gpus or device.uuid in spec.gpus]
    return {
        "id": of.id,
        "owner_uid": of.owner_uid,
        "for_all_users": of.for_all_users,
        "state": of.state.value,
        "created_at": of.created_at,
        "expires_at": of.expires_at,
        "clients": clients,
        "name": spec.name,
        "selector": selector(spec.selector, is_owner),
        "gpus": list(spec.gpus),
        "sm_percent": spec.sm_percent if spec.sm_asked_percent is None else spec.sm_asked_percent,
        "sm_reserved_percent": spec.sm_percent,
        "sm_count": _sm_count(own, lambda each: sm_steps.reserved(spec.sm_percent, spec.processes, each)),
        "memory_bytes": dict(spec.memory_bytes),
        "priority": spec.priority,
        "domain": spec.domain.value,
        "group": spec.group,
        "processes": spec.processes,
        "ttl_seconds": spec.ttl_seconds,
        "wait_seconds": spec.wait_seconds,
        "level": spec.level,
    }


def selector(of: Selector, is_owner: bool) -> Map:
    is_secret = of.kind is SelectorKind.TOKEN and not is_owner
    return {"kind": of.kind.value, "value": None if is_secret else of.value, "start_time": of.start_time}


def sm_count(of: Grant, devices: Sequence[Device]) -> int | None:
    """Return how many SMs a client has of each of its GPUs; None if they differ, or it is not known."""
    own = [device for device in devices if not of.gpus or device.uuid in of.gpus]
    return _sm_count(own, lambda each: sm_steps.given(of.sm_percent, each))


def _sm_count(devices: Sequence[Device], count: Callable[[Device], int]) -> int | None:
    found = {count(each) for each in devices}
    is_known = len(found) == 1 and all(each.multiprocessors for each in devices)
    return found.pop() if is_known else None


def grant(of: Grant, devices: Sequence[Device]) -> Map:
    return {
        "rule": of.rule,
        "lease_id": of.lease_id,
        "gpus": list(of.gpus),
        "sm_percent": of.sm_percent,
        "sm_count": sm_count(of, devices),
        "memory_bytes": dict(of.memory_bytes),
        "priority": of.priority,
        "domain_policy": of.domain.value,
    }


def process(of: ProcessId | None) -> Map:
    return {"pid": of.pid if of else None, "start_time": of.start_time if of else None}


def device(of: Device) -> Map:
    return {
        "ordinal": of.ordinal,
        "uuid": of.uuid,
        "name": of.name,
        "total_bytes": of.total_bytes,
        "pci_bus_id": of.pci_bus_id,
        "compute_mode": of.compute_mode.value,
        "sm_count": of.multiprocessors or None,
        "sm_least": sm_steps.steps_of(of).least,
        "sm_step": sm_steps.steps_of(of).step,
    }


def domain(of: DomainView, servers: list[ServerView]) -> Map:
    return {
        "name": of.name,
        "number": of.number,
        "state": of.state.value,
        "gpus": sorted(of.gpus),
        "uid": of.uid,
        "clients": of.clients,
        "capacity": of.capacity,
        "is_spare": not of.is_public,
        "servers": [server(each) for each in servers],
    }


def server(of: ServerView) -> Map:
    return {"pid": of.pid, "uid": of.uid, "status": of.status, "clients": len(of.client_pids)}


def limits(of: Defaults) -> Map:
    return {
        "default_active_thread_percentage": of.thread_percent,
        "default_device_pinned_mem_limit": dict(of.pinned_limits),
        "default_client_priority": of.client_priority,
    }


def arena(of: Arena) -> Map:
    return {
        "id": of.id,
        "name": of.name,
        "owner_uid": of.owner_uid,
        "owner_gid": of.owner_gid,
        "mode": of.mode,
        "gpu": of.gpu,
        "base": of.base,
        "window_bytes": of.window_bytes,
        "capacity_bytes": of.capacity_bytes,
        "used_bytes": of.used_bytes,
        "allocations": of.allocations,
        "layout_hash": of.layout_hash,
        "layout_bytes": of.layout_bytes,
        "commit": of.commit,
        "state_serial": of.state_serial,
        "generation": of.generation,
        "is_sealed": of.is_sealed,
        "writer_pid": of.writer.pid if of.writer else None,
        "reader_pids": [reader.pid for reader in of.readers[:_MOST_READERS]],
        "lease_id": of.lease_id,
        "ttl_seconds": of.ttl_seconds,
        "created_at": of.created_at,
        "unheld_since": of.unheld_since,
    }


def portion(of: Portion) -> Map:
    """The descriptors of the portion are sent with the result."""
    items = [[each.offset, each.bytes, each.since] for each in of.allocations]
    return {"commit": of.arena.commit, "items": items, "next": of.allocations[-1].offset if of.has_more else None}
