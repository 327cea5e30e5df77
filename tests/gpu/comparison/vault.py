"""What the sections about the vault have in common: its client, its arenas, and mpsd's death."""

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import mpsd_client
from mpsd_client import ErrorCode, calls

from tests.gpu.comparison import processes
from tests.gpu.comparison.clients import Client, Event
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

CLIENT = "arena_client"
GRANULE = 2 << 20
EVENT_SECONDS = 60.0
LEFT_FREE = 2 << 30  # of the GPU's memory, always
FREED_SECONDS = 20.0
MOST_STARTS = 10
PIDFD_GETFD = 438
KEEPER_SOCKET = re.compile(r"/vault-keeper(-\d+)?$")


def unit(stage: Stage) -> int:
    """What is a GiB on a GPU is a MiB on the simulator: its memory is the machine's."""
    return 1 << 20 if stage.options.is_simulated else 1 << 30


def size_text(stage: Stage, size: int) -> str:
    return f"{size / unit(stage):.3g} {'MiB' if stage.options.is_simulated else 'GiB'}"


def start(system: System, command: str, *arguments: object, before: Sequence[str] = ()) -> Client:
    return system.client(CLIENT, command, *map(str, arguments), before=before)


def said(client: Client, event: str, seconds: float = EVENT_SECONDS) -> Event:
    """Raises SystemFailed when it ended without it, or the time is up."""
    found = client.wait_for(event, seconds)
    if found is None:
        refused = client.events("refused") or client.events("error")
        words = f"{client.fate} {refused[0]}" if refused else client.trouble
        program = " ".join(Path(word).name for word in client.argv[:4])
        raise SystemFailed(f"{program}: no {event!r}: {words}"[:300])
    return found


def until_said(system: System, begin: Callable[[], Client], event: str) -> tuple[Client, int]:
    """Return a client that has reported it, and the number of starts: a client that comes to a dying domain is refused."""
    deadline = time.monotonic() + EVENT_SECONDS
    for number in count(1):
        client = begin()
        if client.wait_for(event, EVENT_SECONDS) is not None:
            return client, number
        if time.monotonic() > deadline or number == MOST_STARTS:
            said(client, event)
        client.wait(EVENT_SECONDS)
        system.clients.remove(client)
        time.sleep(0.1)
    raise AssertionError("never reached")


def run(system: System, event: str, command: str, *arguments: object, before: Sequence[str] = ()) -> Event:
    """Run a client to its end, and return its last report."""
    client = start(system, command, *arguments, before=before)
    found = said(client, event)
    if client.wait(EVENT_SECONDS) is None:
        raise SystemFailed(f"{command} did not end after {event!r}")
    system.clients.remove(client)
    return found


def end(system: System, client: Client, number: int = signal.SIGKILL) -> int:
    """By that signal; CLOCK_MONOTONIC in nanoseconds of the moment before."""
    began = time.monotonic_ns()
    client.signal(number)
    if client.wait(EVENT_SECONDS) is None:
        raise SystemFailed(f"pid {client.pid} does not die")
    system.clients.remove(client)
    return began


def connected(system: System) -> mpsd_client.Client:
    return mpsd_client.Client(system.pipe / "mpsd.sock", program="compare")


def remove(system: System, *names: str) -> None:
    """Those that are there; what held them has been ended before."""
    with connected(system) as mpsd:
        for name in names:
            deadline = time.monotonic() + EVENT_SECONDS
            while not _is_removed(mpsd, name):
                if time.monotonic() > deadline:
                    raise SystemFailed(f"the arena {name} cannot be removed")
                time.sleep(0.02)


def _is_removed(mpsd: mpsd_client.Client, name: str) -> bool:
    try:
        mpsd.ask(calls.arena_remove(name))
    except mpsd_client.Refused as refusal:
        if refusal.code == ErrorCode.ARENA_BUSY:
            return False
        if refusal.code != ErrorCode.NO_SUCH_ARENA:
            raise
    return True


def free_bytes(system: System) -> int:
    """What may be asked for now; LEFT_FREE stays."""
    found = run(system, "memory", "info")
    return max(0, int(found["free"]) - min(LEFT_FREE, int(found["total"]) // 8))


def wait_until_free(system: System, wanted: int) -> int:
    """Memory comes back a little after its last descriptor was closed."""
    deadline = time.monotonic() + FREED_SECONDS
    while (found := free_bytes(system)) < wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def kill_mpsd(system: System) -> None:
    pid = system.pid()
    os.kill(pid, signal.SIGKILL)
    if not processes.wait_gone(pid, EVENT_SECONDS):
        raise SystemFailed(f"mpsd, pid {pid}, does not die")


def keeper_pids(system: System) -> list[int]:
    """The vault's: those that listen at its sockets."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    sockets = {f"socket:[{line.split()[6]}]" for line in lines if KEEPER_SOCKET.search(line)}
    pids = [pid for pid in processes.started_below(system.place) if processes.program_name(pid) == "mpsd-keeper"]
    return [pid for pid in pids if not sockets.isdisjoint(_descriptors_of(pid))]


def _descriptors_of(pid: int) -> set[str]:
    found = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # closed by another thread
            found.add(os.readlink(entry.path))
    return found


@contextmanager
def lent_memory(system: System) -> Iterator[int]:
    """Yield a descriptor of 2 MiB of GPU memory, from a client that lives as long: this process has no CUDA."""
    client = start(system, "lend")
    number = int(said(client, "lent")["fd"])
    pidfd = os.pidfd_open(client.pid)
    try:
        fd = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, number, 0)
        if fd < 0:
            raise SystemFailed(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        yield int(fd)
        os.close(fd)
    finally:
        os.close(pidfd)
        end(system, client, signal.SIGTERM)
