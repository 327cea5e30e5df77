"""Find, attach, check and release the descriptors of one client that mpsd holds.  Every call may block."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import Same
from mpsd.host.rules.descriptor_budget import MOST_SPACES
from mpsd.model.process import ProcessId
from mpsd.uvm.rules.memory_maps import Mapping, parse_maps
from mpsd.uvm.rules.shield import ShieldPlan, plan_shield
from mpsd.uvm.shield_mapping import ShieldMapping
from mpsd.uvm.space import Queue, Space, Unavailable
from mpsd.uvm.status import UvmSettings

# Arguments: the process, its pidfd, its known spaces.  Returns the others; raises ProcessEnded, Unavailable or Unreadable.
OpenSpaces = Callable[[ProcessId, int, Sequence[Space]], list[Space]]


class HeldSpace(Struct, eq=False):
    """Owns one space and its queue.

    no_queue: why it lacks the queue that it should have.  no_plan: why no shield is planned yet; another attempt may succeed.
    """

    space: Space
    queue: Queue | None = None
    is_space: bool = False
    laying: ShieldMapping | None = None
    no_queue: str = ""
    no_plan: str = ""

    @property
    def why(self) -> str:
        return "; ".join(why for why in (self.no_queue, self.no_plan) if why)

    @property
    def descriptors(self) -> int:
        return self.space.descriptors + (self.queue is not None)

    def attach(self, process: ProcessId, gpus: tuple[str, ...], settings: UvmSettings, inspector: Inspector) -> None:
        """Attach what the settings ask for and what is not attached yet."""
        if not self.is_space and (settings.events or settings.shield != "off"):
            self._attach(settings)
        if self.is_space and self.laying is None and settings.shield != "off":
            try:
                self.laying, self.no_plan = ShieldMapping(self.space, _plan(process, settings, inspector), gpus), ""
            except Unreadable as exc:
                self.no_plan = f"no shield: {exc}"

    def _attach(self, settings: UvmSettings) -> None:
        """Attach the queue.  A space without events may still have a shield."""
        try:
            queue = self.space.attach()
        except Unavailable as exc:
            self.no_queue, self.is_space = str(exc), True
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


def _plan(process: ProcessId, settings: UvmSettings, inspector: Inspector) -> ShieldPlan:
    return plan_shield(read_mappings(process.pid, inspector), settings.shield)


def read_mappings(pid: int, inspector: Inspector) -> list[Mapping]:
    """Return the lowest mappings; empty if the process has gone, or they cannot be parsed.  Raise Unreadable."""
    try:
        return parse_maps(inspector.maps_now(pid).decode(errors="replace"))
    except (OSError, ValueError):
        return []


class SpaceChanges(Struct, frozen=True):
    """The changes.

    lost: those that the client closed, to be closed here too.  why: why nothing more was found.
    is_unread: the client could not be read in time; another attempt may succeed.
    """

    lost: Sequence[HeldSpace] = ()
    found: Sequence[HeldSpace] = ()
    why: str = ""
    is_unread: bool = False


def look(
    process: ProcessId, pidfd: int, have: Sequence[HeldSpace], open_spaces: OpenSpaces, inspector: Inspector
) -> SpaceChanges:
    """Return what the client has opened and closed since the last look.  Raise ProcessEnded."""
    closed = find_closed(have, inspector)
    # In this order: a dying process is marked before its descriptors go, and those are what is held for it.
    lost = closed if closed and processes.is_alive(process) else []
    known = [holding.space for holding in have if holding not in lost]
    try:
        return SpaceChanges(lost, tuple(HeldSpace(space) for space in open_spaces(process, pidfd, known)))
    except Unavailable as exc:  # for an ending process the kernel lets only root look: no trouble
        return SpaceChanges(lost, why=str(exc) if processes.is_alive(process) else "")
    except Unreadable as exc:
        return SpaceChanges(lost, why=str(exc), is_unread=True)


def attach_all(
    holdings: Sequence[HeldSpace], process: ProcessId, gpus: tuple[str, ...], settings: UvmSettings, inspector: Inspector
) -> None:
    for holding in holdings:
        holding.attach(process, gpus, settings, inspector)


def find_closed(holdings: Sequence[HeldSpace], inspector: Inspector) -> list[HeldSpace]:
    """Return the holdings that their clients have closed, as far as that is known."""
    same = inspector.same_now([holding.space.pair for holding in holdings]) if holdings else []
    return [holding for holding, each in zip(holdings, same, strict=True) if each is Same.OTHER]


def why_no_proof(holdings: Sequence[HeldSpace], *, is_complete: bool) -> str:
    """Return why a fault may be of another process, which sent the client a descriptor of its VA space; empty: it is not.

    is_complete: mpsd has looked since the client asked for a context.  CUDA opens the client's own VA space after its first
    connection, and before it makes another one for a context (driver 580).
    """
    if not is_complete:
        return "its own VA space may not be known"
    is_one = len(holdings) < MOST_SPACES and sum(holding.is_space for holding in holdings) == 1
    return "" if is_one else "it has several VA spaces"


def close_all(holdings: Sequence[HeldSpace]) -> None:
    for holding in holdings:
        holding.close()
