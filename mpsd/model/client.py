"""Values of connected clients: how they are listed and what mpsd holds of them."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from mpsd.model.process import ProcessId


class ClientView(Struct, frozen=True):
    """A client as the domains know it.  server_pid: None until it is connected.  uid: of the process, None if it has ended.

    watched: its memory faults are attributed exactly, by process and address.  shield: low addresses are shielded in it.
    held: its end waits until its GPU work has been ended.  docs/faults.md describes what each is worth.
    """

    process: ProcessId
    uid: int | None
    domain: str
    server_pid: int | None
    watched: bool = False
    shield: bool = False
    held: bool = False


ShieldSetting = Literal["off", "low", "wide"]


class ShieldState(StrEnum):
    OFF = "off"  # not asked for, or not possible in this process
    WAITING = "waiting"  # before the client's first context
    ON = "on"
    PARTLY = "partly"  # a part was refused, or the client lacks a context on one of its GPUs
    KEPT = "kept"  # the range is in use: by the shield of an earlier mpsd
    REFUSED = "refused"


class WatchStatus(Struct, frozen=True):
    """watched: its faults are reported at once.  held: its VA space will outlive it, or does.
    why: the reasons for less than was asked for, in words.
    """

    watched: bool = False
    shield: ShieldState = ShieldState.OFF
    held: bool = False
    why: str = ""


UNKNOWN = WatchStatus(why="not attached")
