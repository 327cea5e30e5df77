"""Values: the settings of the attachments, and the state of one, for lists of clients.  Pure."""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.uvm.shield import ShieldSetting


@dataclass(frozen=True, slots=True)
class UvmSettings:
    """events: listen for the faults of each client.  hold, hold_seconds: keep the VA space of a killed client, for this time at
    most, so that its running work hurts no other client.  most: attachments at once."""

    events: bool = True
    shield: ShieldSetting = "low"
    hold: bool = True
    hold_seconds: float = 2.0
    most: int = 4096

    @property
    def is_idle(self) -> bool:
        return not (self.events or self.hold or self.shield != "off")


class ShieldState(StrEnum):
    OFF = "off"  # not asked for, or not possible in this process
    WAITING = "waiting"  # before the client's first context
    ON = "on"
    PARTLY = "partly"  # a part was refused, or the client lacks a context on one of its GPUs
    KEPT = "kept"  # the range is in use: by the shield of an earlier mpsd
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Standing:
    """watched: its faults are reported at once.  shielded_bytes: the size of its harmless addresses.  held: its VA space will
    outlive it, or does.  why: the reasons for less than was asked for, in words."""

    watched: bool = False
    shield: ShieldState = ShieldState.OFF
    shielded_bytes: int = 0
    held: bool = False
    why: str = ""


UNKNOWN = Standing(why="not attached")
