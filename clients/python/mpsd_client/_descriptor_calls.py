"""The calls that send or receive descriptors; part of `calls`."""

from collections.abc import Sequence
from typing import Any

from mpsd_client import _values as values
from mpsd_client._call import Call, make_call
from mpsd_client._errors import ProtocolError
from mpsd_client._reading import read


def arena_open(name: str, access: str, wait_seconds: float = 0.0) -> Call[values.Arena]:
    """Open an arena.  access: "write" or "read".  wait_seconds: set the client's `timeout_seconds` to more than that."""
    return make_call("arena.open", values.Arena, name=name, access=access, wait_seconds=wait_seconds)


def arena_put(
    arena_id: int, generation: int, allocations: Sequence[tuple[int, int]], fds: Sequence[int]
) -> Call[values.ArenaUse]:
    """Give mpsd allocations.  allocations: (offset, size) of each; fds: a descriptor of GPU memory for each, which the caller
    still has to close."""
    pairs = [list(each) for each in allocations]
    call = make_call("arena.put", values.ArenaUse, id=arena_id, generation=generation, allocations=pairs)
    return Call(call.method, call.params, call.read, tuple(fds))


def arena_commit(
    arena_id: int, generation: int, layout_fd: int | None = None, state_fd: int | None = None
) -> Call[values.Committed]:
    """Commit the arena.  layout_fd: a memory file; None: keep the committed layout.  state_fd: of a forward state; None: keep
    the stored one.  The caller still has to close both."""
    given = {"has_layout": layout_fd is not None, "has_state": None if state_fd is None else True}
    call = make_call("arena.commit", values.Committed, id=arena_id, generation=generation, **given)
    return Call(call.method, call.params, call.read, tuple(fd for fd in (layout_fd, state_fd) if fd is not None))


def arena_take(arena_id: int, after: int | None = None, limit: int | None = None) -> Call[values.Taken]:
    """Get a page of allocations, with descriptors that the caller has to close.  after: the `next` of the page before."""
    call = make_call("arena.take", values.Taken, id=arena_id, after=after, limit=limit)
    return Call(call.method, call.params, call.read, read_with=_read_taken)


def arena_layout(arena_id: int) -> Call[values.ArenaLayout]:
    """Get the layout of an arena, as a descriptor that the caller has to close."""
    call = make_call("arena.layout", values.ArenaLayout, id=arena_id)
    return Call(call.method, call.params, call.read, read_with=_read_layout)


def arena_keep_state(arena_id: int, generation: int, fd: int) -> Call[values.StateKept]:
    """Give mpsd a forward state to keep.  fd: its descriptor, which the caller still has to close."""
    call = make_call("arena.keep_state", values.StateKept, id=arena_id, generation=generation)
    return Call(call.method, call.params, call.read, (fd,))


def arena_state(arena_id: int) -> Call[values.KeptState]:
    """Get the forward state of an arena, as a descriptor that the caller has to close."""
    call = make_call("arena.state", values.KeptState, id=arena_id)
    return Call(call.method, call.params, call.read, read_with=_read_state)


def _read_taken(found: Any, fds: tuple[int, ...]) -> values.Taken:
    taken = read(values.Taken, {**found, "fds": fds})
    if len(taken.items) != len(fds):
        raise ProtocolError(f"{len(taken.items)} allocations came with {len(fds)} descriptors")
    return taken


def _read_layout(found: Any, fds: tuple[int, ...]) -> values.ArenaLayout:
    if len(fds) > 1:
        raise ProtocolError(f"a layout came with {len(fds)} descriptors")
    return read(values.ArenaLayout, {**found, "fd": fds[0] if fds else None})


def _read_state(found: Any, fds: tuple[int, ...]) -> values.KeptState:
    if len(fds) > 1:
        raise ProtocolError(f"a state came with {len(fds)} descriptors")
    return read(values.KeptState, {**found, "fd": fds[0] if fds else None})
