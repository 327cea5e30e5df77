"""One call: who asks, what they ask, of what; and how lists are cut into pages that hold only what the asker may see."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from mpsd.api.authority import Peer
from mpsd.api.events import EventBus, Subscription
from mpsd.api.faults import FaultLog
from mpsd.api.services import Services
from mpsd.wire.messages import Page
from mpsd.wire.rpc import MAX_BYTES, size

R = TypeVar("R")
P = TypeVar("P", bound=Page)

PAGE_BYTES = MAX_BYTES - 1024  # the frame around a page takes a few dozen


class Listener(Protocol):
    """The connection that a call came by, as far as a method may reach it."""

    subscription: Subscription | None


@dataclass(frozen=True, slots=True)
class State:
    """What the socket itself knows; counts are told by `status`, bounds may change."""

    events: EventBus
    faults: FaultLog
    max_queued_events: Callable[[], int]
    connections: Callable[[], int]
    audit_lines_lost: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A request on its way to its handler; who may was checked before (dispatch.py)."""

    services: Services
    state: State
    peer: Peer
    listener: Listener
    ask: R


Handler = Callable[[Call[Any]], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a list.  `key` orders them; `owner_uid` may see it, None: everybody.  `show` is only called for whom it is
    shown to."""

    key: int
    owner_uid: int | None
    show: Callable[[], Mapping[str, Any]]


def paged(rows: Callable[[Call[P]], Iterable[Row]]) -> Handler:
    """The handler of a list.  The only way from rows to an answer, and so the place that leaves out what is others'."""

    async def list_rows(call: Call[P]) -> Mapping[str, Any]:
        after, limit = call.ask.after, call.ask.limit
        seen = (row for row in rows(call) if call.peer.may_see(row.owner_uid))
        wanted = sorted((row for row in seen if after is None or row.key > after), key=lambda row: row.key)
        items: list[Mapping[str, Any]] = []
        room = PAGE_BYTES
        for at, row in enumerate(wanted):
            shown = row.show()
            room -= size(shown)
            if at == limit or (room < 0 and items):
                return {"items": items, "next": wanted[at - 1].key}
            items.append(shown)
        return {"items": items, "next": None}

    return list_rows
