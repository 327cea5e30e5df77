"""One VA space of a client, as mpsd sees it: its event queue, ranges laid into it, and that it lives as long as it is held.

The protocol; the driver's is in device.py, the simulator's in simulator.py.  Every call may block in the kernel, `Queue.take`
and `fileno` alone do not.  Everything closes once; to close it again does nothing.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from mpsd.uvm import abi
from mpsd.uvm.abi import UvmEvent
from mpsd.wire.inspector import Pair


class Outcome(Enum):
    DONE = "done"
    NOT_YET = "not yet"  # the client has no context on this GPU
    IN_USE = "in use"  # something is there already
    NO_SPACE = "no VA space"  # the second descriptor of a client, or one that it has not set up yet
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking for a range.  why: in words, where it is not done."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a queue had.  lost: records for which it had no room, since the last time."""

    events: tuple[UvmEvent, ...] = ()
    lost: int = 0


class Unavailable(Exception):
    """It cannot be done here, and trying again soon will not help; says why."""


class Queue(Protocol):
    def fileno(self) -> int:
        """Readable when there is something to take."""

    def take(self) -> Taken: ...
    def hear_served(self) -> None:
        """From now on GPU faults that the driver has served come too; blocks as a call of `Space`.  Raises Unavailable."""

    def close(self) -> None: ...


class Space(Protocol):
    """One UVM descriptor of a client, duplicated."""

    def attach(self) -> Queue | None:
        """None: this descriptor is no VA space, or not yet.  Raises Unavailable, OSError."""

    def reserve(self, base: int, length: int) -> Answer: ...

    def lay_sparse(self, base: int, length: int, gpu_uuid: str) -> Answer:
        """Only over what `reserve` said DONE to: it replaces whatever is mapped there."""

    def free(self, base: int, length: int) -> Answer:
        """Take back what `reserve` said DONE to."""

    @property
    def pair(self) -> Pair:
        """The duplicate, and what the client had: the same open file until the client closes it, or starts another program."""

    def close(self) -> None: ...


_OUTCOMES = {
    abi.DONE: Outcome.DONE,
    abi.INVALID_DEVICE: Outcome.NOT_YET,
    abi.ADDRESS_IN_USE: Outcome.IN_USE,
    abi.ILLEGAL_ACTION: Outcome.NO_SPACE,
}


def answer(status: int) -> Answer:
    outcome = _OUTCOMES.get(status, Outcome.REFUSED)
    return Answer(outcome, "" if outcome is Outcome.DONE else abi.status_text(status))
