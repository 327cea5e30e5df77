"""Facts about processes, from files below /proc; each process may have ended the next moment.

mpsd itself opens nothing below /proc/PID, since any user can hold the lock of that directory: process_reader.py reads what is
small, and never waits long.  environ, maps, cmdline, kcmp and pidfd_getfd wait more often: inspector.py reads those
(docs/decisions/029).
A process has gone if the error is ENOENT or ESRCH; after any other error it counts as alive.
"""

import atexit
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from mpsd.errors import ProtocolError
from mpsd.fairness.uid_ranges import UidRanges
from mpsd.host.inspector_messages import LinkedFile
from mpsd.host.inspector_process import InspectorProcess
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.host.process_stat import Stat, parse_stat
from mpsd.model.process import ProcessId

_MOST_THREADS = 32  # of a process without its first one, each 30 us of the event loop; with more it counts as alive
_LOOKS = 4  # at all of them; if some came or went each time, it counts as alive
_T = TypeVar("_T")
GONE = (errno.ENOENT, errno.ESRCH)
_HIDDEN = (errno.EPERM, errno.EACCES)  # hidepid of proc(5): the process exists, but is hidden


def process_id(pid: int, *, even_ending: bool = False) -> ProcessId | None:
    """Return the process with this pid; None if it does not exist, is invisible in this pid namespace, or is ending.

    even_ending: also one that is ending, until it is reaped.  Raises OSError if it is not known.
    """
    try:
        stat = _stat(pid)
    except OSError as exc:
        if exc.errno in _HIDDEN:
            return None
        raise
    if stat is None or (not even_ending and _is_ending(pid, stat)):
        return None
    return ProcessId(pid, stat.start_time)


def find(pid: int, *, even_ending: bool = False) -> ProcessId | None:
    """Return the process as `process_id` does; None also if it is not known: with some kernels its user prevents that."""
    try:
        return process_id(pid, even_ending=even_ending)
    except OSError:
        return None


def find_of(pid: int, at_ns: int) -> ProcessId | None:
    """Return the process as `find` does, if it was there at this time of CLOCK_MONOTONIC: its pid may be another's by now."""
    found = find(pid)
    return found if found and found.start_time <= ticks_at(time.monotonic_ns() - at_ns) else None


def ticks_at(ns_ago: int = 0) -> int:
    """Return a time in clock ticks after boot, as ProcessId.start_time."""
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - ns_ago / 1e9) * os.sysconf("SC_CLK_TCK"))


def lives(pid: int) -> bool:
    """Return whether a process has this pid and is not ending; True if that is not known."""
    try:
        return process_id(pid) is not None
    except OSError:
        return True


def is_alive(process: ProcessId) -> bool:
    """Return whether the process lives; True if unknown: its resources may be reused only after it has certainly ended."""
    try:
        stat = _stat(process.pid)
        return stat is not None and stat.start_time == process.start_time and not _is_ending(process.pid, stat)
    except OSError:
        return True


def lacks_first_thread(process: ProcessId) -> bool:
    """Return whether the thread has ended that shows the memory of a process: its environment then reads as empty.

    True if unknown: with some kernels its user prevents the read, and could so hide a token or a cgroup.
    """
    try:
        stat = _stat(process.pid)
    except OSError:
        return True
    return stat is None or stat.is_over


def state(pid: int) -> str:
    """Return the letter of proc(5); X for a process that has gone, ? if that is not known, as without a free descriptor.

    If its first thread has ended, or waits in the kernel as in vfork(2), _MOST_THREADS of all show whether it is T or t, or ?.
    """
    try:
        stat = _stat(pid)
        if stat is None or stat.threads == 1 or not (stat.is_over or stat.state == "D"):
            return stat.state if stat else "X"
        threads = _unless_gone(partial(reader.threads, pid, few=True)) or []
        found = {each.state for each in map(_stat, threads[:_MOST_THREADS]) if each}
    except OSError:
        return "?"
    if found <= {"D", "X", "Z"} and len(threads) > _MOST_THREADS:  # a thread keeps these while the others are stopped
        return "?"
    return max(found - {"X", "Z"}, default="Z")  # of the kernel's letters T and t are the last


def has_thread_ended(number: int) -> bool:
    """Return whether this thread has ended, the first one if it is a pid; others may go on.  False if that is not known."""
    try:
        stat = _stat(number)
    except OSError:
        return False
    return stat is None or stat.state in ("Z", "X")


def parent(pid: int) -> int | None:
    """Return its parent's pid, 0 if that is in another pid namespace; None if the process has gone, or that is not known."""
    stat = read_stat(pid)
    return stat.parent if stat else None


def owner(pid: int) -> tuple[int, int] | None:
    """Return its effective uid and gid; None if it does not exist, or cannot be seen.

    Its directory shows them, also if it is not dumpable, and is found in /proc: no user of it can prevent that.
    """
    try:
        found = os.stat(f"/proc/{pid}")
    except OSError:
        return None
    return found.st_uid, found.st_gid


def sole_uid(pid: int) -> int | None:
    """Return its uid if real, effective and saved uid are the same; None if they differ, or as for `owner`.

    A program of root's that takes a user's effective uid for a moment, as sshd, slurmstepd and file servers do, stays root's.
    """
    found = set(_uids(pid)[:3])
    return found.pop() if len(found) == 1 else None


def real_uid(pid: int) -> int:
    """Return the uid of the user who started it, even if its program changed user; if unknown, its effective one, or root's."""
    return (_uids(pid) or [effective_uid(pid)])[0]


def effective_uid(pid: int) -> int:
    """Return its effective uid, or root's if it has gone, by no read: readers ask for it again and again."""
    return (owner(pid) or (0, 0))[0]


def charged_uid(pid: int) -> int:
    """Return the uid that work for it counts against: the effective one, and of root's programs the real one, by a status."""
    return effective_uid(pid) or real_uid(pid)


def uids(pid: int) -> set[int]:
    """Return its real, effective, saved and file system uid; empty if it has gone or cannot be seen."""
    return set(_uids(pid))


def has_uid(pid: int, uid: int) -> bool:
    """Return whether this is one of its uids; False if it has gone.  Raises OSError if that is not known."""
    return str(uid).encode() in _value(_status(pid) or b"", b"Uid").split()


def is_in_our_namespace(pid: int) -> bool:
    """Return whether it is in mpsd's own pid namespace, and in none below it.  Raises OSError if that is not known.

    The kernel takes 20 ms to write the status of a process with 65,536 groups, so it is read only where mpsd is not root.
    """
    if namespaces := read_pid_namespaces(pid):
        return len(namespaces) == 1
    found = _status(pid)
    return found is not None and len(_value(found, b"NSpid").split()) == 1


def pid_inside(pid: int) -> int | None:
    """Return the pid that a process has in its own pid namespace; None if it has ended, or that is not known."""
    try:
        numbers = _value(_status(pid) or b"", b"NSpid").split()
    except OSError:
        return None
    return int(numbers[-1]) if numbers else None


def children(pid: int) -> list[int]:
    """Return its children; empty if the kernel lacks CONFIG_PROC_CHILDREN, it has ended, or that is not known."""
    try:
        return reader.children(pid)
    except (OSError, ProtocolError):
        return []


def pid_namespaces(pid: int) -> tuple[int, ...]:
    """Return the numbers of its pid namespace and of those above it, mpsd's own last; empty if not known.

    The number is the id, which the kernel gives out once; before Linux 6.18 the inode, which it gives out again.
    """
    with suppress(Unanswered):
        return read_pid_namespaces(pid)
    return ()


def read_pid_namespaces(pid: int) -> tuple[int, ...]:
    """Return the same.  Empty if the process has gone, mpsd may not look at it, or it is not in mpsd's own namespace or below.

    Raises Unanswered if it is unread.
    """
    try:
        return reader.namespaces(pid)
    except Unanswered:
        raise
    except (OSError, ProtocolError):
        return ()


def uids_to_take(pid: int) -> list[tuple[int, int]]:
    """Return the uids that the user namespace of the process maps, as ranges, each its first and its last.

    Raises OSError if they are not known.
    """
    if (text := _unless_gone(partial(reader.text, pid, "uid_map"))) is None:
        raise ProcessLookupError(errno.ESRCH, f"pid {pid} has gone")
    lines = [list(map(int, line.split())) for line in text.splitlines()]
    return [(first, first + count - 1) for _, first, count in lines]


def open_pidfd(process: ProcessId) -> int | None:
    """Return a descriptor that is readable once the process has ended; None if it has been reaped.

    Raises OSError if neither is known, as without a free descriptor.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as exc:
        if exc.errno in (*GONE, errno.EINVAL):  # EINVAL: the pid is a thread's now
            return None
        raise
    try:
        stat = _stat(process.pid)
    except BaseException:
        os.close(pidfd)
        raise
    if stat and stat.start_time == process.start_time:  # not a later process with the same pid
        return pidfd
    os.close(pidfd)
    return None


def kill(process: ProcessId, number: signal.Signals = signal.SIGKILL) -> bool:
    """Send the signal to this process, never to a later one with its pid; False if it has gone.  Raises OSError."""
    if (pidfd := open_pidfd(process)) is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def command(pid: int) -> str:
    """Return the kernel's name of it, 15 bytes at most; empty if it has gone or cannot be seen."""
    try:
        return (_unless_gone(partial(reader.text, pid, "comm")) or b"").removesuffix(b"\n").decode(errors="replace")
    except OSError:
        return ""


def count_by(ranges: UidRanges) -> None:
    """Take the uids of one of these ranges for one user, where a user's processes keep their reader waiting."""
    for each in _READERS:
        each.count_by(ranges)


def start_readers_by(start: Callable[[], InspectorProcess]) -> None:
    """Start the processes that read `stat` and links so from now on."""
    for each in _READERS:
        each.start_by(start)


def linked_file(pid: int, name: str) -> LinkedFile | None:
    """Return what its link `exe`, `root` or `fd/3` leads to; None if it has gone, lacks the link, or cannot be read."""
    try:
        return reader.linked_file(pid, name)
    except (OSError, ProtocolError):
        return None


def numbers(pid: int, links: Sequence[str]) -> set[int]:
    """Return the numbers of its descriptors with these links, or with links of these last names; the lowest 64.

    Raises OSError.
    """
    return searcher.numbers(pid, links)


def read_stat(pid: int) -> Stat | None:
    """Return its stat; None if it has gone, or that is not known."""
    with suppress(OSError):
        return _stat(pid)
    return None


def _stat(pid: int) -> Stat | None:
    """Return its stat; None if it has gone.  Raises OSError."""
    return parse_stat(_unless_gone(partial(reader.stat, pid)) or b"")


def _is_ending(pid: int, stat: Stat) -> bool:
    """Return whether the process with this stat is ending.  Raises OSError if that is not known.

    Its first thread may end alone, and the others go on.  Then mpsd looks at each, and lists them again: one can begin another
    and end, or execute a program and so become the first, before its turn.
    """
    if not stat.is_over or stat.threads == 1:
        return stat.is_over
    before: list[int] = []
    for _ in range(_LOOKS):
        numbers = _threads(pid, stat)
        if numbers == before:
            return True
        if numbers is None or any(map(_goes_on, numbers)):
            return False
        before = numbers
    return False


def _threads(pid: int, stat: Stat) -> list[int] | None:
    """Return the threads of the process with this stat; none if it has gone, None for too many to look at.  Raises OSError."""
    if stat.threads > _MOST_THREADS:
        return None
    found = _unless_gone(partial(reader.threads, pid, few=True)) or []
    return found if len(found) <= _MOST_THREADS else None


def _goes_on(thread: int) -> bool:
    """Return whether a thread neither ends nor was killed.  Raises OSError."""
    stat = _stat(thread)
    return stat is not None and not stat.is_over and not stat.is_killed


def _status(pid: int) -> bytes | None:
    """Return the contents of /proc/PID/status; None if it has gone.  Raises OSError."""
    return _unless_gone(partial(reader.text, pid, "status")) or None


def _value(status: bytes, name: bytes) -> bytes:
    """Return a line's value; empty if the line is not there whole: a process can have more groups than the reader reads.

    The kernel writes a newline in the command name, the first line, as two other characters.
    """
    value, newline, _ = status.partition(b"\n" + name + b":\t")[2].partition(b"\n")
    return value if newline else b""


def _uids(pid: int) -> list[int]:
    """Return real, effective, saved and file system uid; none if it has gone, or they are not known."""
    try:
        return [int(word) for word in _value(_status(pid) or b"", b"Uid").split()]
    except OSError:
        return []


def _unless_gone(read: Callable[[], _T]) -> _T | None:
    """Return what `read` returns; None if the process has gone.  Raises OSError."""
    try:
        return read()
    except OSError as exc:
        if exc.errno in GONE:
            return None
        raise


def collect(pid: int) -> bool:
    """Reap a child that has ended; return True if this call did.  Never blocks."""
    with suppress(ChildProcessError):  # not mpsd's child, or another thread reaped it first
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


reader = ProcessReader(effective_uid)
searcher = ProcessReader(effective_uid)  # a search takes it up to 200 ms: the other one answers in that time
cgroup_reader = ProcessReader(effective_uid)  # before Linux 6.8 one user can delay the reads of all: stat still comes
_READERS = (reader, searcher, cgroup_reader)
for _each in _READERS:
    atexit.register(_each.close)
