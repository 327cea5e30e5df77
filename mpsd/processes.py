"""Facts about processes, from stat, status and cgroup below /proc; each process may be gone the next moment.

These read none of its memory, and take no lock that a process or its user can hold.  environ, maps, cmdline, kcmp and
pidfd_getfd do: for those there is inspector.py.  With some kernels stat does too: docs/decisions/029, "Open".
Gone means ENOENT or ESRCH; any other error leaves a process alive.
"""

import errno
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpsd.model import ProcessId

_PARENT, _FLAGS, _START_TIME = 4, 9, 22  # fields of /proc/PID/stat, proc(5)
_PF_EXITING = 0x4  # linux/sched.h; set before a dying process's descriptors are closed
_GONE = (errno.ENOENT, errno.ESRCH)
_HIDDEN = (errno.EPERM, errno.EACCES)  # hidepid of proc(5): there, and not to be seen
_NS_GET_PARENT = 0xB702  # linux/nsfs.h
_MOST_NAMESPACES = 32  # MAX_PID_NS_LEVEL of linux/pid_namespace.h
_FULL = (errno.EMFILE, errno.ENFILE)
SPARE_DESCRIPTORS = 16  # kept for reading these files where all others are in use (runtime/limits.py)
_raising = threading.Lock()  # protects the limit of this process; nothing else is held while taking it


def process_id(pid: int) -> ProcessId | None:
    """None when there is no such process, none that this pid namespace can see, or one that is ending.

    Raises OSError where that is not known.
    """
    try:
        fields = _status(pid)
    except OSError as exc:
        if exc.errno in _HIDDEN:
            return None
        raise
    if fields is None or fields[0] in (b"Z", b"X") or int(fields[_FLAGS - 3]) & _PF_EXITING:
        return None
    return ProcessId(pid, int(fields[_START_TIME - 3]))


def is_alive(process: ProcessId) -> bool:
    """Also where it is not known: what a process holds is given to nobody else before it has certainly ended."""
    try:
        fields = _status(process.pid)
    except OSError:
        return True
    if fields is None or fields[0] in (b"Z", b"X") or int(fields[_FLAGS - 3]) & _PF_EXITING:
        return False
    return int(fields[_START_TIME - 3]) == process.start_time


def state(pid: int) -> str:
    """The letter of proc(5); X for a process that has gone.  Raises OSError where it is not known."""
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
    """Its effective uid and gid; None when there is no such process, or it cannot be seen."""
    found = _ids(pid)
    return (found["Uid"][1], found["Gid"][1]) if found else None


def sole_uid(pid: int) -> int | None:
    """The user as whom alone it can act: real, effective and saved uid are one.  None where they differ, or as for `owner`.

    A program of root's that takes a user's effective uid for a moment, as sshd, slurmstepd and file servers do, stays root's.
    """
    found = _ids(pid)
    uids = set(found["Uid"][:3]) if found else set()
    return uids.pop() if len(uids) == 1 else None


def real_uid(pid: int) -> int:
    """The user who started it, whatever user its program made it; root where it is not known."""
    found = _ids(pid)
    return found["Uid"][0] if found else 0


def uids(pid: int) -> set[int]:
    """Its real, effective, saved and file system uid; none of one that has gone or cannot be seen."""
    found = _ids(pid)
    return set(found["Uid"]) if found else set()


def is_in_our_namespace(pid: int) -> bool:
    """Whether it is in mpsd's own pid namespace, and in none below it; False where that is not known."""
    try:
        text = _read(pid, "status") or b""
    except OSError:
        return False
    pids = next((line.split()[1:] for line in text.splitlines() if line.startswith(b"NSpid:")), [])
    return len(pids) == 1


def pid_namespaces(pid: int) -> tuple[int, ...]:
    """The inodes of its pid namespace and of those above it, mpsd's own last; none where they are not known.

    The link is read without a lock that a user can hold.  Not known: it has gone, mpsd may not look at it, or it is not in
    mpsd's own namespace or below.
    """
    found: list[int] = []
    opened: list[int] = []
    try:
        own = os.stat("/proc/self/ns/pid").st_ino
        opened.append(os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
        while len(found) < _MOST_NAMESPACES:
            found.append(os.fstat(opened[-1]).st_ino)
            if found[-1] == own:
                return tuple(found)
            opened.append(fcntl.ioctl(opened[-1], _NS_GET_PARENT))
    except OSError:
        pass
    finally:
        for each in opened:
            os.close(each)
    return ()


def open_pidfd(process: ProcessId) -> int | None:
    """A descriptor that is readable once the process has ended; None when nothing of it is left to wait for.

    Raises OSError where neither is known, as without a descriptor to spare.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as exc:
        if exc.errno in (*_GONE, errno.EINVAL):  # EINVAL: the pid of a thread now
            return None
        raise
    try:
        fields = _status(process.pid)
    except BaseException:
        os.close(pidfd)
        raise
    if fields and int(fields[_START_TIME - 3]) == process.start_time:  # not a later process with the same pid
        return pidfd
    os.close(pidfd)
    return None


def kill(process: ProcessId) -> bool:
    """SIGKILL to this process and to no later one with its pid; False where nothing of it is left.  Raises OSError."""
    if (pidfd := open_pidfd(process)) is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def command(pid: int) -> str:
    """The name that the kernel has of it, 15 bytes at most; empty when it has gone or cannot be seen."""
    text = read_stat(pid)
    return text[text.find(b"(") + 1 : text.rfind(b")")].decode(errors="replace")


def read_stat(pid: int) -> bytes:
    """The contents of /proc/PID/stat; empty when it has gone or cannot be seen."""
    try:
        return _read(pid, "stat") or b""
    except OSError:
        return b""


def read_cgroup(pid: int, most_bytes: int) -> str:
    """The contents of /proc/PID/cgroup; empty when it has gone or cannot be seen."""
    try:
        return (_read(pid, "cgroup", most_bytes) or b"").decode(errors="backslashreplace")
    except OSError:
        return ""


def _status(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on; None when it has gone.  Raises OSError."""
    text = _read(pid, "stat") if pid > 0 else None
    if text is None:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the command name may hold spaces and parentheses
    return fields if len(fields) > _START_TIME - 3 else None


def _ids(pid: int) -> dict[str, list[int]] | None:
    """Real, effective, saved and file system ids, by "Uid" and "Gid"; None when it has gone or cannot be seen."""
    try:
        text = _read(pid, "status") if pid > 0 else None
    except OSError:
        return None
    lines = (line.decode().split() for line in (text or b"").splitlines() if line.startswith((b"Uid:", b"Gid:")))
    found = {name.removesuffix(":"): [int(word) for word in words] for name, *words in lines}
    return found if len(found) == 2 else None


def _read(pid: int, name: str, most_bytes: int = 1 << 16) -> bytes | None:
    """None when the process has gone.  Raises OSError."""
    path = f"/proc/{pid}/{name}"
    try:
        try:
            return _contents(path, most_bytes)
        except OSError as exc:
            if exc.errno not in _FULL:
                raise
        with _spare_descriptors():
            return _contents(path, most_bytes)
    except OSError as exc:
        if exc.errno in _GONE:
            return None
        raise


def _contents(path: str, most_bytes: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(most_bytes) or b""


@contextmanager
def _spare_descriptors() -> Iterator[None]:
    """Let this process open a few more for a moment; whatever else opens one meanwhile shares them."""
    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft + SPARE_DESCRIPTORS, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def collect(pid: int) -> bool:
    """Take the end of a child that has ended, so that it is no zombie; True when this did it.  Never blocks."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False  # not our child, or whoever waited for it was quicker
