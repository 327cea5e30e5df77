"""Values of blame, as operators see it."""

from enum import StrEnum

from msgspec import Struct


class BlameKind(StrEnum):
    """A measure against a client or a GPU."""

    CONVICTED = "convicted"  # found guilty: in quarantine until it ends
    SUSPECTED = "suspected"  # one of several possible culprits: placed apart by group testing
    PAUSED = "paused"  # faulted too often in a row: not admitted for a while
    DRAINED = "drained"  # a GPU that failed: it takes no new clients


class BlameStatus(Struct, frozen=True):
    """A measure against one key (mpsd/model/fault.py, Party.key; for a drained GPU, its UUID), and its duration.

    since_at, until_at: seconds since the epoch; until_at: None if not known.  faults: how many of its faults count.
    case: of a conviction, the number of its last fault; of group testing, that of the fault it began with.  group: suspects
    with the same number are placed together.
    """

    key: str
    kind: BlameKind
    since_at: float
    until_at: float | None = None
    faults: int = 0
    case: int | None = None
    group: int | None = None
