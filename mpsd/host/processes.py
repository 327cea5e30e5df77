"""Facts about processes, from stat, status and cgroup below /proc; each process may have ended the next moment.

These reads need none of its memory, and take no lock that a process or its user can hold.  environ, maps, cmdline, kcmp and
pidfd_getfd do: inspector.py reads those.  With some kernels stat does too: docs/decisions/029, "Open".
A process has gone if the error is ENOENT or ESRCH; after any other error it counts as alive.
"""

import errno
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpsd.model.process import ProcessId

_PARENT, _FLAGS, _START_TIME = 4, 9, 22  # fields of /proc/PID/stat, proc(5)
_PF_EXITING = 0x4  # linux/sched.h; set before a dying process's descriptors are closed
_GONE = (errno.ENOENT, errno.ESRCH)
_HIDDEN = (errno.EPERM, errno.EACCES)  # hidepid of proc(5): the process exists, but is hidden
_NS_GET_PARENT = 0xB702  # linux/nsfs.h
_MOST_NAMESPACES = 32  # MAX_PID_NS_LEVEL of linux/pid_namespace.h
_FULL = (errno.EMFILE, errno.ENFILE)
SPARE_DESCRIPTORS = 16  # reserved for reading these files when all others are in use (app/descriptor_limit.py)
_raising = threading.Lock()  # protects the limit of this process; no other lock is taken while it is held


def process_id(pid: int) -> ProcessId | None:
    """Return the process with this pid; None if it does not exist, is invisible in this pid namespace, or is ending.

    Raises OSError if that is not known.
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
    """Return whether the process lives; True if unknown: its resources may be reused only after it has certainly ended."""
    try:
        fields = _status(process.pid)
    except OSError:
        return True
    if fields is None or fields[0] in (b"Z", b"X") or int(fields[_FLAGS - 3]) & _PF_EXITING:
        return False
    return int(fields[_START_TIME - 3]) == process.start_time


def state(pid: int) -> str:
    """Return the letter of proc(5); X for a process that has gone.  Raises OSError if it is not known."""
    fields = _status(pid)
    return fields[0].decode() if fields else "X"


def parent(pid: int) -> int:
    """Return its parent's pid; 0 if the process does not exist, or its parent is in another pid namespace.  Raises OSError."""
    fields = _status(pid)
    return int(fields[_PARENT - 3]) if fields else 0


def owner(pid: int) -> tuple[int, int] | None:
    """Return its effective uid and gid; None if it does not exist, or cannot be seen."""
    found = _ids(pid)
    return (found["Uid"][1], found["Gid"][1]) if found else None


def sole_uid(pid: int) -> int | None:
    """Return its uid if real, effective and saved uid are the same; None if they differ, or as for `owner`.

    A program of root's that takes a user's effective uid for a moment, as sshd, slurmstepd and file servers do, stays root's.
    """
    found = _ids(pid)
    uids = set(found["Uid"][:3]) if found else set()
    return uids.pop() if len(uids) == 1 else None


def real_uid(pid: int) -> int:
    """Return the uid of the user who started it, even if its program changed user; root's if not known."""
    found = _ids(pid)
    return found["Uid"][0] if found else 0


def uids(pid: int) -> set[int]:
    """Return its real, effective, saved and file system uid; empty if it has gone or cannot be seen."""
    found = _ids(pid)
    return set(found["Uid"]) if found else set()


def is_in_our_namespace(pid: int) -> bool:
    """Return whether it is in mpsd's own pid namespace, and in none below it; False if that is not known."""
    try:
        text = _read(pid, "status") or b""
    except OSError:
        return False
    pids = next((line.split()[1:] for line in text.splitlines() if line.startswith(b"NSpid:")), [])
    return len(pids) == 1


def pid_namespaces(pid: int) -> tuple[int, ...]:
    """Return the inodes of its pid namespace and of those above it, mpsd's own last; empty if not known.

    It reads the link without a lock that a user can hold.  They are not known if the process has gone, mpsd may not look at it,
    or it is not in mpsd's own namespace or below.
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
    """Return a descriptor that is readable once the process has ended; None if it has been reaped.

    Raises OSError if neither is known, as without a free descriptor.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as exc:
        if exc.errno in (*_GONE, errno.EINVAL):  # EINVAL: the pid is a thread's now
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
    """Send SIGKILL to this process, never to a later one with its pid; False if it has gone.  Raises OSError."""
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
    """Return the kernel's name of it, 15 bytes at most; empty if it has gone or cannot be seen."""
    text = read_stat(pid)
    return text[text.find(b"(") + 1 : text.rfind(b")")].decode(errors="replace")


def read_stat(pid: int) -> bytes:
    """Return the contents of /proc/PID/stat; empty if it has gone or cannot be seen."""
    try:
        return _read(pid, "stat") or b""
    except OSError:
        return b""


def read_cgroup(pid: int, most_bytes: int) -> str:
    """Return the contents of /proc/PID/cgroup; empty if it has gone or cannot be seen."""
    try:
        return (_read(pid, "cgroup", most_bytes) or b"").decode(errors="backslashreplace")
    except OSError:
        return ""


def _status(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the third on; None if it has gone.  Raises OSError."""
    text = _read(pid, "stat") if pid > 0 else None
    if text is None:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the command name may contain spaces and parentheses
    return fields if len(fields) > _START_TIME - 3 else None


def _ids(pid: int) -> dict[str, list[int]] | None:
    """Return real, effective, saved and file system ids, by "Uid" and "Gid"; None if it has gone or cannot be seen."""
    try:
        text = _read(pid, "status") if pid > 0 else None
    except OSError:
        return None
    lines = (line.decode().split() for line in (text or b"").splitlines() if line.startswith((b"Uid:", b"Gid:")))
    found = {name.removesuffix(":"): [int(word) for word in words] for name, *words in lines}
    return found if len(found) == 2 else None


def _read(pid: int, name: str, most_bytes: int = 1 << 16) -> bytes | None:
    """Read a file below /proc/PID; None if the process has gone.  Raises OSError."""
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
    """Raise this process's limit of descriptors for a moment; other threads that open one then share the spare ones."""
    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft + SPARE_DESCRIPTORS, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def collect(pid: int) -> bool:
    """Reap a child that has ended; return True if this call did.  Never blocks."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False  # not mpsd's child, or another thread reaped it first
