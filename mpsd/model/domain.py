"""Values of fault domains: their states and views, the limits and servers in them."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from mpsd.model.lease import FULL_PERCENT, NO_LIMITS


class DomainState(StrEnum):
    """The life of a fault domain.

    STARTING -> READY <-> FAULT -> (RECYCLING -> READY | STOPPING -> GONE); READY -> CONTAINED -> DEAD | STOPPING;
    any state -> DEAD when its vendor daemon dies,
    DEAD -> STARTING after a backoff.  SILENT and DRAINING are shown for a READY one while its vendor daemon does not answer,
    and while it is being emptied.
    """

    STARTING = "starting"  # the vendor's control daemon is being started
    READY = "ready"  # takes clients
    FAULT = "fault"  # a fatal GPU error: takes no client until its clients have ended
    SILENT = "silent"  # its vendor daemon lives and does not answer: takes no client until it does
    CONTAINED = "contained"  # an SM exception was contained: its clients continue, and it takes no other
    RECYCLING = "recycling"  # its servers are being replaced; takes no client for a moment
    DRAINING = "draining"  # an operator wants it emptied: takes no client, and ends with its last one
    STOPPING = "stopping"  # mpsd has sent it quit
    DEAD = "dead"  # its vendor daemon died; restarted after a backoff
    GONE = "gone"


class DomainView(Struct, frozen=True):
    """The facts about one fault domain that a policy needs.

    `uid` is the user of the server that runs there, None if none runs.  `clients` counts the places taken of `capacity`:
    connected contexts, and clients that are still connecting.  `gpus` are the UUIDs its vendor daemon was started with.
    """

    name: str
    state: DomainState
    gpus: frozenset[str]
    uid: int | None
    clients: int
    capacity: int
    is_public: bool  # has had a client; a domain that is not public is a spare
    number: int  # order of creation
    key: str = ""  # whom it serves alone: a lease, a group, those in quarantine; empty: everybody
    is_answering: bool = True  # its vendor daemon has answered what it was asked, or was asked a moment ago
    is_exposed: bool = False  # every user can connect to its vendor daemon, past the relay
    trouble: str = ""  # why it is DEAD or SILENT, as far as that is known
    users: frozenset[int] = frozenset()  # of its clients, as far as mpsd knows them
    is_worn: bool = False  # it is DRAINING since newcomers got no context there
    ends_at: float | None = None  # when mpsd ends the clients of a CONTAINED one (seconds since the epoch); None: never
    is_blocked: bool = False  # its server waits for a stopped client: all clients' work stands still
    blocked_uid: int | None = None  # the user of all its stopped clients; None: not known, or several users
    failing: frozenset[int] = frozenset()  # the shares of users whose last newcomers got no context there


class Defaults(Struct, frozen=True):
    """The limits that later servers and clients start with.

    thread_percent: in (0, 100].  pinned_limits: bytes by device UUID; no entry, no limit.
    client_priority: 0 normal, 1 below normal.
    """

    thread_percent: float = FULL_PERCENT
    pinned_limits: Mapping[str, int] = field(default_factory=lambda: NO_LIMITS)
    client_priority: int = 0


class ServerView(Struct, frozen=True):
    """One vendor server as users see it.

    status: the vendor's word, INITIALIZING, ACTIVE or FAULT.  domain: the fault domain it runs in.
    device_uuids: the devices its vendor control daemon was started with, in that daemon's order, because that is how the
    vendor numbers them; empty if they are the board's own devices in the board's order.
    """

    pid: int
    uid: int
    status: str
    client_pids: tuple[int, ...]
    domain: str
    device_uuids: tuple[str, ...] = ()
