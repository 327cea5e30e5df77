"""One VA space of a client, as mpsd uses it: its event queue, the ranges mapped into it, and its life while mpsd holds it.

This is the protocol; device.py implements it for the driver, simulator.py for the simulator.  Every call may block in the
kernel, except `Queue.take` and `fileno`.  Closing a second time does nothing.
"""

from enum import Enum
from typing import Protocol

from msgspec import Struct

from mpsd.host.inspector_messages import Pair
from mpsd.uvm import abi
from mpsd.uvm.abi import UvmEvent


class Outcome(Enum):
    DONE = "done"
    NOT_YET = "not yet"  # the client has no context on this GPU
    IN_USE = "in use"  # the range is mapped already
    NO_SPACE = "no VA space"  # the second descriptor of a client, or one that it has not set up yet
    REFUSED = "refused"


class RangeResult(Struct, frozen=True):
    """The result of a request for a range.  why: in words, if it is not done."""

    outcome: Outcome
    why: str = ""


class Taken(Struct, frozen=True):
    """The contents of a queue.  lost: records for which it had no room, since the last call."""

    events: tuple[UvmEvent, ...] = ()
    lost: int = 0


class Unavailable(Exception):
    """It is not possible here, and another attempt soon will not help; the text gives the reason."""


class Queue(Protocol):
    def fileno(self) -> int:
        """Return the descriptor, which is readable when the queue has records."""

    def take(self) -> Taken: ...
    def hear_served(self) -> None:
        """Enable records of GPU faults that the driver has served; blocks like a call of `Space`.  Raise Unavailable."""

    def close(self) -> None: ...


class Space(Protocol):
    """One UVM descriptor of a client, duplicated."""

    def attach(self) -> Queue | None:
        """Attach a queue; None: this descriptor is not a VA space, or not yet.  Raise Unavailable or OSError."""

    def reserve(self, base: int, length: int) -> RangeResult: ...

    def lay_sparse(self, base: int, length: int, gpu_uuid: str) -> RangeResult:
        """Map sparse pages, only over a range that `reserve` answered with DONE: it replaces every mapping there."""

    def free(self, base: int, length: int) -> RangeResult:
        """Free a range that `reserve` answered with DONE."""

    @property
    def descriptors(self) -> int:
        """The number of descriptors of mpsd that it takes."""

    @property
    def pair(self) -> Pair:
        """The duplicate, and the client's number: the same open file until the client closes it, or starts another program."""

    def close(self) -> None: ...


_OUTCOMES = {
    abi.DONE: Outcome.DONE,
    abi.INVALID_DEVICE: Outcome.NOT_YET,
    abi.ADDRESS_IN_USE: Outcome.IN_USE,
    abi.ILLEGAL_ACTION: Outcome.NO_SPACE,
}


def answer(status: int) -> RangeResult:
    outcome = _OUTCOMES.get(status, Outcome.REFUSED)
    return RangeResult(outcome, "" if outcome is Outcome.DONE else abi.status_text(status))
