"""The words of succession.py: a service and its members, what can happen to them, what can be decided.  Pure."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from mpsd.model import ProcessId

MOST_MEMBERS = 64
MOST_RANK = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, but the count."""

    most_promotions: int = 3
    window_seconds: float = 60.0
    yield_seconds: float = 10.0  # to let go, when asked
    promote_seconds: float = 10.0  # to take over
    fence_seconds: float = 5.0  # then it is told again; there is no end to that


class Phase(StrEnum):
    """Of a service."""

    IDLE = "idle"  # nobody writes
    PROMOTING = "promoting"  # the writer was told to begin
    SERVING = "serving"
    YIELDING = "yielding"  # the writer was asked to let go
    FENCING = "fencing"  # the writer is being ended


class Standing(StrEnum):
    """Of a member."""

    WARMING = "warming"
    READY = "ready"
    FAULTED = "faulted"  # for good: its context is lost
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the service.  domain: where its context lives.  rank: who comes first, the lowest."""

    process: ProcessId
    domain: str
    rank: int = 0
    standing: Standing = Standing.WARMING


@dataclass(frozen=True, slots=True)
class Service:
    """members: in the order in which they joined.  writer: who may write, or could; also while it is fenced, and when it is no
    member any more.  holder: who writes the arena, and is none of the service's: it is waited for.  wish: who shall be next.
    is_lost: the one before was, so that the promotion to come, or under way, counts.  is_empty: the vault has lost what was in
    the arena, and nobody has given it again.  promotions: when those were that count.
    promoted_at: when the last one was, of all.  not_before: until then others may be heard of who come first.  retry_at: the
    vault could not promote anybody, and is asked again then.  deadline: when Elapsed is wanted.  until_done: who serves and
    stops of its own accord has done the work.  is_done: one has, and nobody has joined since."""

    phase: Phase = Phase.IDLE
    members: tuple[Member, ...] = ()
    writer: ProcessId | None = None
    holder: ProcessId | None = None
    wish: ProcessId | None = None
    is_lost: bool = False
    is_empty: bool = False
    promotions: tuple[float, ...] = ()
    promoted_at: float = -inf
    not_before: float = -inf
    retry_at: float = -inf
    deadline: float | None = None
    until_done: bool = False
    is_done: bool = False

    def member(self, process: ProcessId | None) -> Member | None:
        return next((each for each in self.members if each.process == process), None)


# -- what happens ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    process: ProcessId
    domain: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """Where its context lives is known only now."""

    process: ProcessId
    domain: str


@dataclass(frozen=True, slots=True)
class Held:
    """The arena is written by this process, which nobody promoted: an earlier mpsd may have, or it opened it itself."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Ready:
    """It has its context and has mapped the arena; or it is heard of again."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Faulted:
    """In this domain: all of its processes are concerned, or this one alone."""

    domain: str
    process: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Silent:
    """It missed its heartbeats."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Asked:
    """For a handover; to: None: to whoever is next."""

    to: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class Fenced:
    """It writes no more and cannot: it has let go of the arena, or is gone, and nothing runs for it on the GPU."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Promoted:
    """It says that it serves."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Failed:
    """It says that it cannot take over, or go on."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Postponed:
    """It could not be told to begin: the vault cannot keep that now.  It has done nothing."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Emptied:
    """The vault has lost what was in the arena.  Who serves has it still, and nobody else."""


@dataclass(frozen=True, slots=True)
class Filled:
    """It is there again, or something else is."""


@dataclass(frozen=True, slots=True)
class Finished:
    """It lets go of the arena of its own accord, and will be Fenced: nobody has asked it to."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The deadline has come."""


Event = (
    Joined | Placed | Held | Ready | Faulted | Ended | Silent | Asked | Fenced | Promoted | Failed | Postponed | Finished
    | Emptied | Filled | Elapsed
)  # fmt: skip

# -- what to do --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promote:
    process: ProcessId


@dataclass(frozen=True, slots=True)
class Fence:
    """End it, if it lives, and say Fenced when nothing of it can write any more.  May be decided again."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Yield:
    """Ask it to let go of the arena; Fenced when it has."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Keep:
    """Tell it to go on: there is nobody to hand over to."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Unserved:
    """Nobody serves, and nobody is promoted now."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    why: str


Decision = Promote | Fence | Yield | Keep | Unserved | Refuse
