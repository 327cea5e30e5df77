"""The VA spaces of a simulated client: two files in MPSD_SIM_DIR/uvm, which it keeps open (docs/simulator.md).

PID.space is the page (sim_page.py), locked by the client; PID.control stands for /dev/nvidiactl, and is closed after it;
PID.events is a FIFO with the entries of the event queue.
"""

import mmap
import os
import stat
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from mpsd.host.inspector import Inspector
from mpsd.host.inspector_messages import Pair
from mpsd.host.processes import lives
from mpsd.model.process import ProcessId
from mpsd.uvm import abi, client_descriptors
from mpsd.uvm.sim_page import PAGE_BYTES, SpacePage
from mpsd.uvm.space import RangeResult, Space, Taken, Unavailable, answer

_READ_ENTRIES = 1024  # as many as a FIFO holds
_SERVER_SECONDS = 0.5  # for a server to notice that a client has gone


class SimulatedDevices(Struct, frozen=True):
    """`directory`: MPSD_SIM_DIR."""

    directory: Path
    inspector: Inspector

    def open_spaces(self, process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        """Return the spaces that the process has in addition to `have`.  Raise ProcessEnded or Unavailable."""
        folder = self.directory.resolve() / "uvm"
        space_path, control_path, events_path = (
            str(folder / f"{process.pid}.{kind}") for kind in ("space", "control", "events")
        )
        known = [space.pair for space in have]
        if client_descriptors.find(process.pid, _links(space_path)) <= {pair.number for pair in known}:
            return []
        with ExitStack() as taken, ExitStack() as made:
            control = self._take_one(process.pid, pidfd, control_path)
            if control is None:
                return []
            taken.callback(os.close, control)
            spaces: list[Space] = []
            for number, descriptor in self._take(process.pid, pidfd, space_path, known):
                taken.callback(os.close, descriptor)
                if (page := _page(descriptor)) is not None:
                    events = self._take_events(process.pid, pidfd, events_path)
                    spaces.append(SimulatedSpace(process.pid, number, os.dup(descriptor), os.dup(control), events, *page))
                    made.callback(spaces[-1].close)
            made.pop_all()
        return spaces

    def _take(self, pid: int, pidfd: int, path: str, known: Sequence[Pair] = ()) -> list[tuple[int, int]]:
        return client_descriptors.take(self.inspector, pid, pidfd, _links(path), known)

    def _take_one(self, pid: int, pidfd: int, path: str) -> int | None:
        """Take the first descriptor of this path, if any."""
        found = [each for _, each in self._take(pid, pidfd, path)]
        for each in found[1:]:
            os.close(each)
        return found[0] if found else None

    def _take_events(self, pid: int, pidfd: int, path: str) -> int | None:
        taken = self._take_one(pid, pidfd, path)
        if taken is not None and stat.S_ISFIFO(os.fstat(taken).st_mode):
            os.set_blocking(taken, False)
            return taken
        if taken is not None:
            os.close(taken)
        return None


def _links(path: str) -> list[str]:
    return [path, f"{path} (deleted)"]


def _page(descriptor: int) -> tuple[mmap.mmap, SpacePage] | None:
    """Map the page; None: the client has not made it yet.  Raise Unavailable."""
    try:
        memory = mmap.mmap(descriptor, PAGE_BYTES)
    except (OSError, ValueError):
        return None  # it is too short
    page = SpacePage(memoryview(memory))
    if page.is_made and page.is_known:
        return memory, page
    is_made = page.is_made
    page.release()
    memory.close()
    if is_made:
        raise Unavailable("the simulator's page is of another layout")
    return None


class SimulatedSpace(Struct):
    """Owns the duplicates, and the mapping of the page.  `events`: None before the client has some."""

    pid: int
    number: int
    descriptor: int
    control: int
    events: int | None
    memory: mmap.mmap
    page: SpacePage

    def attach(self) -> "SimulatedQueue | None":
        if self.events is None:
            return None
        events = os.dup(self.events)
        _read(events)  # old records that no reader took
        self.page.set_attached(True)
        return SimulatedQueue(events, self, self.page.dropped)

    def reserve(self, base: int, length: int) -> RangeResult:
        return answer(self.page.reserve(base, length))

    def lay_sparse(self, base: int, length: int, gpu_uuid: str) -> RangeResult:
        """Map sparse pages; the page has only one GPU."""
        return answer(self.page.lay_sparse(base, length))

    def free(self, base: int, length: int) -> RangeResult:
        return answer(self.page.free(base, length))

    @property
    def descriptors(self) -> int:
        return 2 + (self.events is not None)

    @property
    def pair(self) -> Pair:
        return Pair(self.descriptor, self.number, self.pid)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.page.release()
        self.memory.close()
        os.close(descriptor)
        os.close(self.control)
        if self.events is not None:
            os.close(self.events)
        if not lives(self.pid):
            _wait_until_seen(path)


def _wait_until_seen(path: str) -> None:
    """Wait as on the device, where closing a dead client's descriptors takes until its work is off the GPU.

    Its server removes the files then, unless it has died too.
    """
    until = time.monotonic() + _SERVER_SECONDS
    while os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.001)


class SimulatedQueue(Struct):
    """Owns a duplicate of the FIFO; closed before its space."""

    descriptor: int
    space: SimulatedSpace
    _dropped: int

    def hear_served(self) -> None:
        """Do nothing: the simulator always sends these records."""

    def fileno(self) -> int:
        return self.descriptor

    def take(self) -> Taken:
        raw = _read(self.descriptor)
        whole = len(raw) // abi.ENTRY_BYTES * abi.ENTRY_BYTES
        entries = [raw[at : at + abi.ENTRY_BYTES] for at in range(0, whole, abi.ENTRY_BYTES)]
        events = [event for entry in entries if (event := abi.parse_entry(entry)) is not None]
        before, self._dropped = self._dropped, self.space.page.dropped
        return Taken(tuple(events), max(0, self._dropped - before))

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            self.space.page.set_attached(False)
            os.close(descriptor)


def _read(events: int) -> bytes:
    try:
        return os.read(events, _READ_ENTRIES * abi.ENTRY_BYTES)
    except BlockingIOError:
        return b""
