"""The descriptors of one client that mpsd holds: found, attached, looked after, given back.  Everything here may block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpsd import processes
from mpsd.model import ProcessId
from mpsd.uvm.laying import Laying
from mpsd.uvm.maps import Mapping, parse_maps
from mpsd.uvm.shield import Plan, plan_shield
from mpsd.uvm.space import Queue, Space, Unavailable
from mpsd.uvm.standing import UvmSettings

# The process, its pidfd, those that it is known to have.  Gives the others; raises ProcessEnded, Unavailable.
OpenSpaces = Callable[[ProcessId, int, Sequence[Space]], list[Space]]
_MAPS_BYTES = 16384  # the lowest mappings; the kernel lists them in order


@dataclass(slots=True, eq=False)
class Holding:
    """Owns one space and its queue.  why: why it has no queue, where it should have one."""

    space: Space
    queue: Queue | None = None
    is_space: bool = False
    laying: Laying | None = None
    why: str = ""

    @property
    def is_still_open(self) -> bool:
        return self.space.is_open_as(self.space.number)

    def attach(self, process: ProcessId, gpus: tuple[str, ...], settings: UvmSettings) -> None:
        """As far as is asked for and not there yet."""
        if not self.is_space and (settings.events or settings.shield != "off"):
            self._attach(settings)
        if self.is_space and self.laying is None and settings.shield != "off":
            self.laying = Laying(self.space, _plan(process, settings), gpus)

    def _attach(self, settings: UvmSettings) -> None:
        """A space that cannot be listened to may still have a shield."""
        try:
            queue = self.space.attach()
        except Unavailable as exc:
            self.why, self.is_space = str(exc), True
            return
        if queue is None:
            return
        self.is_space = True
        if settings.events:
            self.queue = queue
        else:
            queue.close()  # it showed that this is a VA space

    def close(self) -> None:
        if self.queue is not None:
            self.queue.close()
        self.space.close()


def _plan(process: ProcessId, settings: UvmSettings) -> Plan:
    return plan_shield(read_mappings(process.pid), settings.shield)


def read_mappings(pid: int) -> list[Mapping]:
    """The lowest ones; empty where they cannot be read or understood."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return parse_maps(maps.read(_MAPS_BYTES).decode(errors="replace"))
    except (OSError, ValueError):
        return []


@dataclass(frozen=True, slots=True)
class Look:
    """What changed.  lost: those that the client closed, to be closed here too.  why: why nothing more can be found."""

    lost: Sequence[Holding] = ()
    found: Sequence[Holding] = ()
    why: str = ""


def look(process: ProcessId, pidfd: int, have: Sequence[Holding], open_spaces: OpenSpaces) -> Look:
    """What the client has opened and closed since.  Raises ProcessEnded."""
    closed = [holding for holding in have if not holding.is_still_open]
    # In this order: a dying process is marked before its descriptors go, and those are what is held for it.
    lost = closed if closed and processes.is_alive(process) else []
    known = [holding.space for holding in have if holding not in lost]
    try:
        return Look(lost, tuple(Holding(space) for space in open_spaces(process, pidfd, known)))
    except Unavailable as exc:  # of a process that is ending the kernel shows root alone what it has: that is no trouble
        return Look(lost, why=str(exc) if processes.is_alive(process) else "")


def attach_all(holdings: Sequence[Holding], process: ProcessId, gpus: tuple[str, ...], settings: UvmSettings) -> None:
    for holding in holdings:
        holding.attach(process, gpus, settings)


def find_closed(holdings: Sequence[Holding]) -> bool:
    return any(not holding.is_still_open for holding in holdings)


def close_all(holdings: Sequence[Holding]) -> None:
    for holding in holdings:
        holding.close()
