"""Which processes are ours: those that were started with an MPS pipe directory below ours.  Found in /proc, ended by pid."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def started_below(directory: Path) -> list[int]:
    """Return the living processes whose CUDA_MPS_PIPE_DIRECTORY is below a directory, without this one."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={directory}/".encode()
    return [pid for pid in _pids() if pid != os.getpid() and _has_variable(pid, wanted) and is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Return whether a process lives; a zombie counts as dead."""
    return _stat(pid)[0:1] not in ([], ["Z"], ["X"])


def end_below(directory: Path, seconds: float = 5.0) -> list[int]:
    """SIGKILL until none is left; the pids of those that cannot be ended.

    A process that exits loses its memory, and with it its environment, before it closes its files: a pid that was seen once
    counts until the process has ended.
    """
    deadline = time.monotonic() + seconds
    seen: set[int] = set()
    while (pids := _still_below(directory, seen)) and time.monotonic() < deadline:
        for pid in started_below(directory):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    return pids


def _still_below(directory: Path, seen: set[int]) -> list[int]:
    seen.update(started_below(directory))
    return [pid for pid in sorted(seen) if is_alive(pid)]


def wait_gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def program_name(pid: int) -> str:
    """The last part of argv[0]."""
    try:
        first = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return ""
    return os.path.basename(first.decode(errors="replace"))


def cpu_seconds(pid: int) -> float:
    """Used so far, threads that have ended included; 0 for one that has gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), by the kernel's rule; it counts nanoseconds
    except OSError:
        return 0.0


def memory_mib(pid: int) -> tuple[float, float]:
    """Return resident memory, and the proportional share of shared memory (PSS); 0 if the kernel does not report it."""
    return _kib(pid, "status", "VmRSS:") / 1024, _kib(pid, "smaps_rollup", "Pss:") / 1024


def _kib(pid: int, file: str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def _has_variable(pid: int, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(variable.startswith(wanted) for variable in environment.split(b"\0"))


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
