"""Facts about processes, from /proc, each of which may be gone the next moment."""

import os
import signal
from collections.abc import Iterator

from mpsd.model import ProcessId

_PARENT, _FLAGS, _START_TIME = 4, 9, 22  # fields of /proc/PID/stat, proc(5)
_PF_EXITING = 0x4  # linux/sched.h; set before a dying process's descriptors are closed


def process_id(pid: int) -> ProcessId | None:
    """None when there is no such process, none that this pid namespace can see, or one that is ending."""
    fields = _status(pid)
    if fields is None or fields[0] in (b"Z", b"X") or int(fields[_FLAGS - 3]) & _PF_EXITING:
        return None
    return ProcessId(pid, int(fields[_START_TIME - 3]))


def is_alive(process: ProcessId) -> bool:
    return process_id(process.pid) == process


def state(pid: int) -> str:
    """The letter of proc(5); X for a process that has gone."""
    fields = _status(pid)
    return fields[0].decode() if fields else "X"


def parent(pid: int) -> int:
    """Its parent's pid; 0 when there is no such process, or its parent is in another pid namespace."""
    fields = _status(pid)
    return int(fields[_PARENT - 3]) if fields else 0


def namespace_pids(pid: int) -> tuple[int, ...]:
    """Its pids in all pid namespaces that it is in, ours first; at least the one that was given."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            lines = status.read().splitlines()
    except OSError:
        return (pid,)
    words = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return (pid, *(number for word in words if (number := int(word)) != pid))


def owner(pid: int) -> tuple[int, int] | None:
    """Its uid and gid; None when there is no such process."""
    try:
        found = os.stat(f"/proc/{pid}")
    except OSError:
        return None
    return found.st_uid, found.st_gid


def open_pidfd(process: ProcessId) -> int | None:
    """A descriptor that is readable once the process has ended; None when nothing of it is left to wait for."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    fields = _status(process.pid)
    if fields and int(fields[_START_TIME - 3]) == process.start_time:  # not a later process with the same pid
        return pidfd
    os.close(pidfd)
    return None


def kill(process: ProcessId) -> bool:
    """SIGKILL to this process and to no later one with its pid; False where nothing of it is left.  Raises PermissionError."""
    if (pidfd := open_pidfd(process)) is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _status(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on."""
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the command name may hold spaces and parentheses
    return fields if len(fields) > _START_TIME - 3 else None


def environment_variable(pid: int, name: str) -> str | None:
    """What the process was started with; None when unset or unreadable (another user's process, when not root)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            entries = environ.read(1 << 20).split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    for entry in entries:
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def started_with(variable: str, value: str) -> Iterator[ProcessId]:
    """The processes whose environment has this variable with exactly this value; as root, everybody's."""
    for name in os.listdir("/proc"):
        if name.isdigit() and environment_variable(int(name), variable) == value and (found := process_id(int(name))):
            yield found


def program_name(pid: int) -> str:
    """The base name of argv[0]; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return os.path.basename(cmdline.read(4096).split(b"\0")[0].decode(errors="replace"))
    except OSError:
        return ""


def collect(pid: int) -> bool:
    """Take the end of a child that has ended, so that it is no zombie; True when this did it.  Never blocks."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False  # not our child, or whoever waited for it was quicker
