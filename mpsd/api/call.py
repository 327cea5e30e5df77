"""One call: the caller, the request and what it acts on; and paging, which keeps rows of other users out of lists."""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import trio
from msgspec import Struct, field

from mpsd.api.authority import Peer
from mpsd.api.event_bus import EventBus, Subscription
from mpsd.api.fault_reports import Reports
from mpsd.api.ports import Ports
from mpsd.errors import NoSuchClient
from mpsd.host.descriptors import Descriptors
from mpsd.model.process import ProcessId
from mpsd.wire.messages import Page
from mpsd.wire.rpc import MAX_BYTES, size

R = TypeVar("R")
T = TypeVar("T")
P = TypeVar("P", bound=Page)

PAGE_BYTES = MAX_BYTES - 1024  # the frame around a page takes a few dozen bytes


class Listener(Protocol):
    """The connection that a call came by, as far as a method may reach it."""

    subscription: Subscription | None


class State(Struct, frozen=True):
    """The socket's own state: counts, which `status` reports, bounds, which a reload may change, and the turn of requests."""

    events: EventBus
    reports: Reports
    max_queued_events: Callable[[], int]
    connections: Callable[[], int]
    audit_lines_lost: Callable[[], int]
    turn: trio.Lock = field(default_factory=trio.Lock)  # of all users but operators (connection.py)


class Call(Struct, Generic[R], frozen=True):
    """A request on its way to its handler; dispatch.py has checked the privilege and the number of descriptors.

    taken: the descriptors that came with it; given: those that go with the answer.  answer: sends the answer now, before the
    handler returns, if the peer can take it; the handler's result or exception is then discarded.  Neither waits nor raises.
    """

    services: Ports
    state: State
    peer: Peer
    listener: Listener
    ask: R
    taken: Descriptors = field(default_factory=Descriptors)
    given: Descriptors = field(default_factory=Descriptors)
    answer: Callable[[Mapping[str, Any]], None] = lambda result: None

    def process(self) -> ProcessId:
        """Return the calling process.

        Raises NoSuchClient if mpsd's pid namespace does not have it, or it has ended: a connection may outlive the process that
        made it, and a later process may have its pid.
        """
        process = self.peer.process
        if process is None or self.services.find_process(process.pid) != process:
            raise NoSuchClient(f"pid {self.peer.pid} of user {self.peer.uid}, which connected, no longer exists")
        return process


Handler = Callable[[Call[Any]], Awaitable[Mapping[str, Any]]]


class Rows(Struct, Generic[T], frozen=True):
    """The rows of a list: (key, the user who may see it or None for every user, the entry), ordered by key.

    is_descending: the keys descend.  show: encodes an entry; called only for entries on the page.  is_wanted: the caller's
    filter.  most_looked_at: how many visible entries one page examines, a long one as several (weight); the next page continues
    there, so that a filter that matches nothing does not make mpsd examine all entries at once.
    """

    entries: Iterable[tuple[int, int | None, T]]
    show: Callable[[T], Mapping[str, Any]]
    is_descending: bool = False
    is_wanted: Callable[[T], bool] = lambda entry: True
    most_looked_at: float = math.inf
    weight: Callable[[T], int] = lambda entry: 1

    def is_behind(self, key: int, after: int | None) -> bool:
        return after is None or (key < after if self.is_descending else key > after)


def paged(rows: Callable[[Call[P]], Rows[Any]]) -> Handler:
    """Return the handler of a list.  All lists pass through it, so that it alone leaves out the rows of other users."""

    async def list_rows(call: Call[P]) -> Mapping[str, Any]:
        listed, after, may_see = rows(call), call.ask.after, call.peer.may_see
        items: list[Mapping[str, Any]] = []
        room, last, looked_at = PAGE_BYTES, None, 0
        for key, owner_uid, entry in listed.entries:
            if not listed.is_behind(key, after) or not may_see(owner_uid):
                continue
            if looked_at >= listed.most_looked_at:
                return {"items": items, "next": last}
            looked_at += listed.weight(entry)
            if listed.is_wanted(entry):
                shown = listed.show(entry)
                room -= size(shown)
                if len(items) == call.ask.limit or (room < 0 and items):
                    return {"items": items, "next": last}
                items.append(shown)
            last = key
        return {"items": items, "next": None}

    return list_rows
