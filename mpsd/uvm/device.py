"""The VA spaces of a real client: its descriptors of /dev/nvidia-uvm, and /dev/nvidia-uvm-tools for their events.

Each space is held together with the client's descriptors of /dev/nvidiactl and is closed before them, as the kernel does at the
end of a process.  A space that outlives them leaks in the server: once two to seven clients with an SM share of their own have
ended so, every newcomer of that server gets 401 ILLEGAL_STATE (H200, driver 580.159.04; docs/decisions/027).
"""

import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from msgspec import Struct

from mpsd.host.inspector import Inspector
from mpsd.host.inspector_messages import Pair
from mpsd.host.syscalls import device_number
from mpsd.model.process import ProcessId
from mpsd.native import ffi
from mpsd.uvm import abi, client_descriptors
from mpsd.uvm.space import Outcome, RangeResult, Space, Taken, Unavailable, answer

UVM, TOOLS, CONTROL = Path("/dev/nvidia-uvm"), Path("/dev/nvidia-uvm-tools"), Path("/dev/nvidiactl")


class Devices(Struct, frozen=True):
    """Opens the VA spaces of processes; the paths are as mpsd sees them."""

    inspector: Inspector
    uvm: Path = UVM
    tools: Path = TOOLS
    control: Path = CONTROL

    def open_spaces(self, process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        """Return the spaces that the process has in addition to `have`.

        None before it has a control descriptor, which CUDA opens before its first space (NVML opens another).  Raise
        ProcessEnded or Unavailable.
        """
        device, control = _device_of(self.uvm), _device_of(self.control)
        known = [space.pair for space in have]
        numbers = client_descriptors.find(process.pid, [self.uvm.name])
        if numbers <= {pair.number for pair in known}:
            return []
        with ExitStack() as taken, ExitStack() as made:
            controls = [each for _, each in self._take(process.pid, pidfd, self.control, control)]
            for each in controls:
                taken.callback(os.close, each)
            spaces: list[DeviceSpace] = []
            for number, each in self._take(process.pid, pidfd, self.uvm, device, known) if controls else ():
                spaces.append(DeviceSpace(process.pid, number, each, self.tools, []))
                made.callback(spaces[-1].close)
            try:
                for space, each in product(spaces, controls):
                    space.controls.append(os.dup(each))
            except OSError as exc:
                raise client_descriptors.explained(exc) from exc
            made.pop_all()
        return [*spaces]

    def _take(
        self, pid: int, pidfd: int, path: Path, device: tuple[int, int], known: Sequence[Pair] = ()
    ) -> list[tuple[int, int]]:
        return client_descriptors.take(self.inspector, pid, pidfd, [path.name], known, device)


def _device_of(path: Path) -> tuple[int, int]:
    """Return the major and minor number.  Raise Unavailable if `path` is not a device."""
    try:
        kind, major, minor = device_number(str(path))
    except OSError as exc:
        raise Unavailable(f"{path}: {exc.strerror}") from exc
    if kind != stat.S_IFCHR:
        raise Unavailable(f"{path} is not a device")
    return major, minor


class DeviceSpace(Struct):
    """Owns the duplicates `descriptor` and `controls`; closes the first before the others."""

    pid: int
    number: int
    descriptor: int
    tools: Path
    controls: list[int]

    def attach(self) -> "DeviceQueue | None":
        try:
            tools = os.open(self.tools, os.O_RDWR | os.O_CLOEXEC)
        except OSError as exc:
            raise Unavailable(f"{self.tools}: {exc.strerror}") from exc
        try:
            queue = DeviceQueue(tools)
        except BaseException:
            os.close(tools)
            raise
        try:
            is_attached = queue.listen(self.descriptor)
        except BaseException:
            queue.close()
            raise
        if is_attached:
            return queue
        queue.close()
        return None

    def reserve(self, base: int, length: int) -> RangeResult:
        return self._ask(abi.CREATE_RANGE, abi.pack_range(base, length), abi.range_status)

    def lay_sparse(self, base: int, length: int, gpu_uuid: str) -> RangeResult:
        try:
            question = abi.pack_sparse(base, length, abi.parse_uuid(gpu_uuid))
        except ValueError as exc:
            return RangeResult(Outcome.REFUSED, str(exc))
        return self._ask(abi.MAP_SPARSE, question, abi.sparse_status)

    def free(self, base: int, length: int) -> RangeResult:
        return self._ask(abi.FREE, abi.pack_range(base, length), abi.free_status)

    def _ask(self, request: int, question: bytearray, status: Callable[[bytearray], int]) -> RangeResult:
        try:
            return answer(status(_ask(self.descriptor, request, question)))
        except Unavailable as exc:
            return RangeResult(Outcome.REFUSED, str(exc))

    @property
    def descriptors(self) -> int:
        return 1 + len(self.controls)

    @property
    def pair(self) -> Pair:
        return Pair(self.descriptor, self.number, self.pid)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        while self.controls:
            os.close(self.controls.pop())


@dataclass(slots=True)
class DeviceQueue:
    """Owns a descriptor of the tools device and the two memory areas into which the kernel writes its events.

    The descriptor is closed first, because until then the kernel writes.
    """

    descriptor: int
    _entries: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, abi.QUEUE_ENTRIES * abi.ENTRY_BYTES))
    _control: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, abi.CONTROL_BYTES))
    _words: memoryview = field(init=False)
    _counters: memoryview = field(init=False)
    _lost: int = 0
    _fence: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._words = memoryview(self._control).cast("I")  # one load or store for each: a counter is never torn
        self._counters = memoryview(self._control).cast("Q")

    def listen(self, space: int) -> bool:
        """Attach the queue; False: `space` is not a VA space, or not yet.  Raise Unavailable if the driver cannot do it."""
        question = abi.pack_tracker(_address(self._entries), _address(self._control), space)
        status = abi.tracker_status(_ask(self.descriptor, abi.INIT_TRACKER, question))
        if status == abi.ILLEGAL_ACTION:
            return False
        _must(status, "attaching the event queue")
        question = _ask(self.descriptor, abi.SET_THRESHOLD, abi.pack_threshold(1))  # else it wakes when it is half full
        _must(abi.threshold_status(question), "setting its threshold")
        question = _ask(self.descriptor, abi.ENABLE_EVENTS, abi.pack_enable(abi.ENABLED))
        _must(abi.enable_status(question), "enabling its events")
        return True

    def hear_served(self) -> None:
        question = _ask(self.descriptor, abi.ENABLE_EVENTS, abi.pack_enable(abi.ENABLED_WITH_SERVED))
        _must(abi.enable_status(question), "enabling events of faults that were served")

    def fileno(self) -> int:
        return self.descriptor

    def take(self) -> Taken:
        get, put = self._words[abi.GET_BEHIND], self._words[abi.PUT_BEHIND]
        with self._fence:  # so that entries written before `put` are read after it
            places = abi.pending(get, put)
        raw = [self._entries[at * abi.ENTRY_BYTES : (at + 1) * abi.ENTRY_BYTES] for at in places]
        with self._fence:  # and their places are given back after that
            self._words[abi.GET_AHEAD] = self._words[abi.GET_BEHIND] = put % abi.QUEUE_ENTRIES
        events = [event for entry in raw if (event := abi.parse_entry(entry)) is not None]
        return Taken(tuple(events), self._count_lost())

    def _count_lost(self) -> int:
        before, self._lost = self._lost, sum(self._counters[abi.DROPPED : abi.DROPPED + abi.DROPPED_COUNTERS])
        return max(0, self._lost - before)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        os.close(descriptor)
        for view in (self._words, self._counters):
            view.release()
        for memory in (self._entries, self._control):
            memory.close()


def _address(memory: mmap.mmap) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))


def _ask(descriptor: int, request: int, buffer: bytearray) -> bytearray:
    """Send the request.  Raise Unavailable if the driver has no such request."""
    try:
        fcntl.ioctl(descriptor, request, buffer, True)
    except OSError as exc:
        raise Unavailable(f"the driver refused request {request}: {exc.strerror}") from exc
    return buffer


def _must(status: int, what: str) -> None:
    if status != abi.DONE:
        raise Unavailable(f"{what}: {abi.status_text(status)}")
