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
from dataclasses import dataclass
from pathlib import Path

from mpsd.model import ProcessId
from mpsd.processes import process_id
from mpsd.uvm import abi, descriptors
from mpsd.uvm.sim_page import PAGE_BYTES, Page
from mpsd.uvm.space import Answer, Space, Taken, Unavailable, answer
from mpsd.uvm.syscalls import is_same_file

_READ_ENTRIES = 1024  # as many as a FIFO holds
_SERVER_SECONDS = 0.5  # that a server may take to notice that a client has gone


@dataclass(frozen=True, slots=True)
class SimulatedDevices:
    """`directory`: MPSD_SIM_DIR."""

    directory: Path

    def open_spaces(self, process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        """Those that the process has besides `have`.  Raises ProcessEnded, Unavailable."""
        folder = self.directory.resolve() / "uvm"
        space_path = str(folder / f"{process.pid}.space")
        spaces: list[Space] = []
        try:
            for number in _find(process.pid, space_path):
                if any(space.is_open_as(number) for space in (*have, *spaces)):
                    continue
                with ExitStack() as taken:
                    space = _open(process.pid, pidfd, number, folder, taken)
                    if space is not None:
                        spaces.append(space)
                        taken.pop_all()
        except BaseException:
            for each in spaces:
                each.close()
            raise
        return spaces


def _open(pid: int, pidfd: int, number: int, folder: Path, taken: ExitStack) -> "SimulatedSpace | None":
    """None: it is not there, or not made yet.  What was taken is in `taken`, however it ends.  Raises as open_spaces."""
    control = _take(pid, pidfd, str(folder / f"{pid}.control"))
    if control is None:
        return None
    taken.callback(os.close, control)
    descriptor = descriptors.duplicate(pidfd, number)
    if descriptor is None:
        return None
    taken.callback(os.close, descriptor)
    try:
        memory = taken.enter_context(mmap.mmap(descriptor, PAGE_BYTES))
    except (OSError, ValueError):
        return None  # it is too short
    page = Page(memoryview(memory))
    taken.callback(page.release)
    if not page.is_made:
        return None
    if not page.is_known:
        raise Unavailable("the simulator's page is of another layout")
    events = _take_events(pid, pidfd, str(folder / f"{pid}.events"))
    return SimulatedSpace(pid, number, descriptor, control, events, memory, page)


def _find(pid: int, path: str) -> list[int]:
    return descriptors.find(pid, lambda link: link in (path, f"{path} (deleted)"))


def _take(pid: int, pidfd: int, path: str) -> int | None:
    for number in _find(pid, path):
        if (taken := descriptors.duplicate(pidfd, number)) is not None:
            return taken
    return None


def _take_events(pid: int, pidfd: int, path: str) -> int | None:
    taken = _take(pid, pidfd, path)
    if taken is not None and stat.S_ISFIFO(os.fstat(taken).st_mode):
        os.set_blocking(taken, False)
        return taken
    if taken is not None:
        os.close(taken)
    return None


@dataclass(slots=True)
class SimulatedSpace:
    """Owns the duplicates, and the mapping of the page.  `events`: None where the client has none yet."""

    pid: int
    number: int
    descriptor: int
    control: int
    events: int | None
    memory: mmap.mmap
    page: Page

    def attach(self) -> "SimulatedQueue | None":
        if self.events is None:
            return None
        events = os.dup(self.events)
        _read(events)  # what nobody took is old
        self.page.set_attached(True)
        return SimulatedQueue(events, self, self.page.dropped)

    def reserve(self, base: int, length: int) -> Answer:
        return answer(self.page.reserve(base, length))

    def lay_sparse(self, base: int, length: int, gpu_uuid: str) -> Answer:
        """The page knows one GPU."""
        return answer(self.page.lay_sparse(base, length))

    def free(self, base: int, length: int) -> Answer:
        return answer(self.page.free(base, length))

    def is_open_as(self, number: int) -> bool:
        is_same = is_same_file(self.descriptor, self.pid, number)
        return number == self.number if is_same is None else is_same

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
        if process_id(self.pid) is None:
            _wait_until_seen(path)


def _wait_until_seen(path: str) -> None:
    """As on the device, where to close what a dead client had open takes until its work is off the GPU.  Its server takes the
    files away then, unless that has died too."""
    until = time.monotonic() + _SERVER_SECONDS
    while os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.001)


@dataclass(slots=True)
class SimulatedQueue:
    """Owns a duplicate of the FIFO; closed before its space."""

    descriptor: int
    space: SimulatedSpace
    _dropped: int

    def hear_served(self) -> None:
        """They come in any case."""

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
