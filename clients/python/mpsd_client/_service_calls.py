"""The calls about services; part of `calls`.

For a call with wait_seconds, set the client's `timeout_seconds` to more than that.
"""

from typing import Any

from mpsd_client import _values as values
from mpsd_client._call import Call, make_call, make_page
from mpsd_client._errors import ProtocolError
from mpsd_client._reading import read
from mpsd_client._values import Page


def service_enlist(name: str) -> Call[values.Enlisted]:
    """Enlist this process in a service, before CUDA begins in it.  The arena need not exist yet."""
    return make_call("service.enlist", values.Enlisted, name=name)


def service_join(arena_id: int, rank: int = 0, heartbeat_seconds: float = 0.0) -> Call[values.Instruction]:
    """Join a service.  rank: mpsd prefers the ready standby with the lowest rank."""
    return make_call("service.join", values.Instruction, id=arena_id, rank=rank, heartbeat_seconds=heartbeat_seconds)


def service_ready(arena_id: int) -> Call[values.Instruction]:
    return make_call("service.ready", values.Instruction, id=arena_id)


def service_follow(arena_id: int, after: int | None = None, wait_seconds: float = 0.0) -> Call[values.Instruction]:
    """Get this member's instruction.  after: the last `serial`: wait for a change."""
    return make_call("service.follow", values.Instruction, id=arena_id, after=after, wait_seconds=wait_seconds)


def service_serving(arena_id: int, generation: int) -> Call[None]:
    return _said("service.serving", id=arena_id, generation=generation)


def service_yielded(arena_id: int, generation: int) -> Call[values.Instruction]:
    return make_call("service.yielded", values.Instruction, id=arena_id, generation=generation)


def service_failed(arena_id: int, why: str) -> Call[None]:
    return _said("service.failed", id=arena_id, why=why)


def service_leave(arena_id: int) -> Call[None]:
    return _said("service.leave", id=arena_id)


def service_get(name: str, after: int | None = None, wait_seconds: float = 0.0) -> Call[values.Service]:
    """Get a service by name.  after: the last `revision`: wait for a change."""
    return make_call("service.get", values.Service, name=name, after=after, wait_seconds=wait_seconds)


def service_list(limit: int | None = None) -> Call[Page[values.Service]]:
    return make_page("service.list", values.Service, limit=limit)


def service_handover(name: str, to_pid: int | None = None, wait_seconds: float = 30.0) -> Call[values.HandedOver]:
    """Hand the service over to a standby.  to_pid: its pid; None: mpsd chooses the next standby."""
    return make_call("service.handover", values.HandedOver, name=name, to_pid=to_pid, wait_seconds=wait_seconds)


def service_change(
    name: str,
    *,
    standbys: int | None = None,
    sm_percent: float | None = None,
    memory_bytes: int | None = None,
    heartbeat_seconds: float | None = None,
    until_done: bool | None = None,
) -> Call[values.Service]:
    """Change the settings that are not None; 0 removes a reservation."""
    return make_call(
        "service.change", values.Service, name=name, standbys=standbys, sm_percent=sm_percent, memory_bytes=memory_bytes,
        heartbeat_seconds=heartbeat_seconds, until_done=until_done,
    )  # fmt: skip


def arena_keep_state(arena_id: int, generation: int, fd: int) -> Call[values.StateKept]:
    """Give mpsd a forward state to keep.  fd: its descriptor, which the caller still has to close."""
    call = make_call("arena.keep_state", values.StateKept, id=arena_id, generation=generation)
    return Call(call.method, call.params, call.read, (fd,))


def arena_state(arena_id: int) -> Call[values.KeptState]:
    """Get the forward state of an arena, as a descriptor that the caller has to close."""
    call = make_call("arena.state", values.KeptState, id=arena_id)
    return Call(call.method, call.params, call.read, read_with=_read_state)


def _said(method: str, **params: Any) -> Call[None]:
    return Call(method, params, lambda found: None)


def _read_state(found: Any, fds: tuple[int, ...]) -> values.KeptState:
    if len(fds) > 1:
        raise ProtocolError(f"a state came with {len(fds)} descriptors")
    return read(values.KeptState, {**found, "fd": fds[0] if fds else None})
