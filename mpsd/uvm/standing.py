"""Values: what is asked of the attachments, and how far one has come, for lists of clients.  Pure."""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.uvm.shield import ShieldSetting


@dataclass(frozen=True, slots=True)
class UvmSettings:
    """events: listen for the faults of each client.  hold, hold_seconds: keep the VA space of a client that was killed, for
    so long at most, so that the work it had running harms nobody.  most: attachments at once."""

    events: bool = True
    shield: ShieldSetting = "low"
    hold: bool = True
    hold_seconds: float = 2.0
    most: int = 4096

    @property
    def is_idle(self) -> bool:
        return not (self.events or self.hold or self.shield != "off")


class ShieldState(StrEnum):
    OFF = "off"  # not asked for, or nowhere in this process
    WAITING = "waiting"  # the client has no context yet
    ON = "on"
    PARTLY = "partly"  # some of it was refused, or some of its GPUs have no context of this client
    KEPT = "kept"  # something is there already: what an earlier mpsd laid
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Standing:
    """watched: its faults are told at once.  shielded_bytes: how much of its addresses is harmless.  held: its VA space will
    outlive it, or does.  why: what is less than was asked for, in words."""

    watched: bool = False
    shield: ShieldState = ShieldState.OFF
    shielded_bytes: int = 0
    held: bool = False
    why: str = ""


UNKNOWN = Standing(why="not attached")
