"""The types of promotion.py: a service and its members, the events that concern them, the decisions.  Pure."""

from enum import IntEnum
from math import inf

from msgspec import Struct

from mpsd.model.process import ProcessId
from mpsd.model.service import MemberState, Phase

MOST_MEMBERS = 64


class PromotionLimits(Struct, frozen=True):
    """The limits of promotions: seconds, and one count."""

    most_promotions: int = 3
    window_seconds: float = 60.0
    yield_seconds: float = 10.0  # to yield, when asked
    promote_seconds: float = 10.0  # to take over
    fence_seconds: float = 5.0  # then mpsd tries again, without end


class Member(Struct, frozen=True):
    """A process of the service.  domain: the fault domain of its context.  rank: the lowest is promoted first.

    is_closing: an exception was contained in its domain, which takes no other client and will end.
    """

    process: ProcessId
    domain: str
    rank: int = 0
    standing: MemberState = MemberState.WARMING
    is_closing: bool = False


class Step(IntEnum):
    """How far a move to another GPU is, in YIELDING."""

    NONE = 0  # no move: a handover
    ASKED = 1  # the writer was asked for its last barrier
    TAKEN = 2  # it has taken the barrier, and will be Fenced


class Service(Struct, frozen=True):
    """The state of a service.

    members: in the order in which they joined.  writer: the process that may still write, also while it is fenced, and
    after it has left the service.  holder: a process outside the service that writes the arena; promotions wait for its
    end.  wish: the requested successor; the writer: it is to leave.  is_lost: the last active was lost, so the next
    promotion counts.  is_empty: the vault has lost the arena's memory, and no writer has given it again.  promotions: the
    times of those that count.  promoted_at: the time of the last promotion.  not_before: until then members with
    precedence may still join.  retry_at: when to repeat a promotion that the vault refused.  deadline: when Elapsed is
    due.  until_done: an active that stops unasked has done the work.  is_done: one has, and no member has joined since.
    move: NONE in all phases but YIELDING.
    """

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
    move: Step = Step.NONE

    def member(self, process: ProcessId | None) -> Member | None:
        return next((each for each in self.members if each.process == process), None)


# -- events ------------------------------------------------------------------------------------------------------------


class Joined(Struct, frozen=True):
    process: ProcessId
    domain: str
    rank: int = 0


class Placed(Struct, frozen=True):
    """The domain of its context has become known."""

    process: ProcessId
    domain: str


class Writing(Struct, frozen=True):
    """This process writes the arena without a promotion: an earlier mpsd promoted it, or it opened the arena itself."""

    process: ProcessId


class Ready(Struct, frozen=True):
    """It has its context and has mapped the arena; or it asks again after a silence."""

    process: ProcessId


class Faulted(Struct, frozen=True):
    """A fault in this domain: it concerns all processes of the domain, or only this one."""

    domain: str
    process: ProcessId | None = None


class Closing(Struct, frozen=True):
    """An exception was contained in this domain: its clients work on, and it will end."""

    domain: str


class Ended(Struct, frozen=True):
    process: ProcessId


class Silent(Struct, frozen=True):
    """It missed its heartbeats."""

    process: ProcessId


class Asked(Struct, frozen=True):
    """A handover was requested; to: None: to the next standby.  is_move: to the replica on another GPU.  is_leave: the writer
    is to end, whether or not a standby is ready."""

    to: ProcessId | None = None
    is_move: bool = False
    is_leave: bool = False


class Taken(Struct, frozen=True):
    """It has taken the last barrier before a move, and will be Fenced."""

    process: ProcessId


class Unmoved(Struct, frozen=True):
    """The move is cancelled."""


class Fenced(Struct, frozen=True):
    """It can no longer write: it has closed the arena, or has ended, and none of its work runs on the GPU."""

    process: ProcessId


class Promoted(Struct, frozen=True):
    """It reports that it serves."""

    process: ProcessId


class Failed(Struct, frozen=True):
    """It reports that it cannot take over, or continue."""

    process: ProcessId


class Postponed(Struct, frozen=True):
    """The vault could not store its promotion; it has done nothing yet."""

    process: ProcessId


class Emptied(Struct, frozen=True):
    """The vault has lost the arena's memory; only the active still has it."""


class Filled(Struct, frozen=True):
    """The arena has memory again, the old or another."""


class Finished(Struct, frozen=True):
    """It closes the arena unasked, and will be Fenced."""

    process: ProcessId


class Elapsed(Struct, frozen=True):
    """The deadline has passed."""


Event = (
    Joined | Placed | Writing | Ready | Faulted | Closing | Ended | Silent | Asked | Fenced | Promoted | Failed | Postponed
    | Finished | Emptied | Filled | Elapsed | Taken | Unmoved
)  # fmt: skip

# -- decisions ---------------------------------------------------------------------------------------------------------


class Promote(Struct, frozen=True):
    process: ProcessId


class Fence(Struct, frozen=True):
    """End it, if it lives, and report Fenced when it can no longer write.  May be decided again."""

    process: ProcessId


class Yield(Struct, frozen=True):
    """Ask it to close the arena; Fenced when it has."""

    process: ProcessId


class Keep(Struct, frozen=True):
    """Let it continue: no standby can take over."""

    process: ProcessId


class Unserved(Struct, frozen=True):
    """No member serves, and none is promoted now."""

    why: str


class Refuse(Struct, frozen=True):
    why: str


Decision = Promote | Fence | Yield | Keep | Unserved | Refuse
