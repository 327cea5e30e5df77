"""Fixtures of the UVM tests: a client that obeys, a place for observations, a VA space that answers as set."""

import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_messages import Pair
from mpsd.model.client import ShieldState, WatchStatus
from mpsd.model.fault import Observation
from mpsd.model.process import ProcessId
from mpsd.uvm.attachments import Attachments
from mpsd.uvm.client_watch import InThread
from mpsd.uvm.holding import OpenSpaces
from mpsd.uvm.simulator import SimulatedDevices
from mpsd.uvm.space import Outcome, RangeResult
from mpsd.uvm.status import UvmSettings
from tests.inspecting import INSPECTOR
from tests.running import started

SCRIPT = Path(__file__).with_name("fake_client.py")
GPU = "GPU-00000000-1111-2222-3333-444444444444"
DONE, NOT_YET = RangeResult(Outcome.DONE), RangeResult(Outcome.NOT_YET, "invalid device (0x26)")


class FakeClient:
    """A process with a VA space of the simulator's kind."""

    def __init__(self, directory: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-S", str(SCRIPT), str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        found = processes.process_id(self._child.pid)
        assert found is not None
        self.process: ProcessId = found
        self.space = directory / "uvm" / f"{found.pid}.space"

    def ask(self, words: str) -> str:
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(words + "\n")
        return self._child.stdout.readline().strip()

    def begin(self) -> "FakeClient":
        """Bring it to the state after cuInit, with a context."""
        self.ask("open")
        self.ask("register")
        return self

    def end(self, words: str = "exit 0") -> None:
        """End by itself, not collected yet."""
        assert self._child.stdin
        self._child.stdin.write(words + "\n")

    def kill(self) -> None:
        self._child.kill()

    def wait_for_end(self) -> None:
        """Wait for the end of the process, which stays a zombie."""
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def collect(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe
            pipe.close()

    @property
    def is_held(self) -> bool:
        """Return whether its VA space lives: another process has the lock."""
        with self.space.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False


@contextmanager
def a_client(directory: Path) -> Iterator[FakeClient]:
    client = FakeClient(directory)
    try:
        yield client
    finally:
        client.collect()


async def until(is_so: Callable[[], bool]) -> None:
    """Real time: the kernel and another process bring it about.  The test's own deadline ends the wait."""
    while not is_so():
        await trio.to_thread.run_sync(os.sched_yield)


@dataclass
class Told:
    """Receives observations."""

    observations: list[Observation] = field(default_factory=list)

    def __call__(self, observation: Observation) -> None:
        self.observations.append(observation)

    async def wait_for(self, count: int) -> None:
        await until(lambda: len(self.observations) >= count)


async def directly(function: Callable[..., object], *args: object) -> object:
    """In place of a thread, where the clock is the test's: it would jump while a thread works."""
    await trio.lowlevel.checkpoint()
    return function(*args)


def watching(
    settings: UvmSettings, open_spaces: OpenSpaces, inspector: Inspector, told: Told, in_thread: InThread | None = None
) -> Attachments:
    made = Attachments(settings, open_spaces, inspector, in_thread)
    made.observed.subscribe(told)
    return made


def attachments(directory: Path, told: Told, in_thread: object = None, **settings: object) -> Attachments:
    wanted = UvmSettings(**settings)  # type: ignore[arg-type]
    return watching(wanted, SimulatedDevices(directory, INSPECTOR).open_spaces, INSPECTOR, told, in_thread=in_thread)  # type: ignore[arg-type]


@dataclass
class FakeSpace:
    """Answers from lists, the last answer for ever; remembers what it was asked."""

    reserves: list[RangeResult] = field(default_factory=lambda: [DONE])
    lays: list[RangeResult] = field(default_factory=lambda: [DONE])
    number: int = 3
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def attach(self) -> None:
        return None

    def reserve(self, base: int, length: int) -> RangeResult:
        self.asked.append(("reserve", base, length))
        return self.reserves.pop(0) if len(self.reserves) > 1 else self.reserves[0]

    def lay_sparse(self, base: int, length: int, gpu_uuid: str) -> RangeResult:
        self.asked.append(("lay", base, length, gpu_uuid))
        return self.lays.pop(0) if len(self.lays) > 1 else self.lays[0]

    def free(self, base: int, length: int) -> RangeResult:
        self.asked.append(("free", base, length))
        return DONE

    descriptors: int = 1

    @property
    def pair(self) -> Pair:
        """Of this process with itself: open as long as it lives."""
        return Pair(0, 0, os.getpid())

    def close(self) -> None:
        self.asked.append(("close",))


def company() -> bool:
    return True


def nobody() -> bool:
    return False


@asynccontextmanager
async def attached(made: Attachments, client: FakeClient, has_company: Callable[[], bool] = company) -> AsyncIterator[None]:
    """Run the watch of clients for as long as a block, with one client."""
    async with started(made.run):
        made.watch(client.process, "default", (GPU,), has_company)
        yield


WATCHED = WatchStatus(watched=True, shield=ShieldState.ON, held=True)
