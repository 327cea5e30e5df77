"""The identity of a client: its cgroups and its token, from /proc; cgroup v1 and v2.

SCM_CREDENTIALS and SO_PEERCRED carry pid and uid as mpsd's own namespaces count them, so that a process in a container has
its outer pid here.  One that mpsd cannot see at all has process None; then only its uid and gid are known.
Prose: docs/leases.md, "Who a client is".
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mpsd.host import processes
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import CgroupLook
from mpsd.host.mounts import mounted
from mpsd.host.process_stat import parse_stat
from mpsd.model.cgroup_path import describe
from mpsd.model.lease import Identity
from mpsd.model.process import Credentials, ProcessId

TOKEN_VARIABLE = "MPSD_LEASE"
_TOKEN_CHARACTERS = 128  # leases/rules/spec.py refuses longer ones
_UNREAD = "its cgroups cannot be read: {}"
_ARE_SHOWN = Path("/proc/self/cgroup").exists() and Path("/proc/self/cgroup").read_text() != ""  # else no hierarchy is mounted
_DELETED = " (deleted)"  # the kernel appends it to a cgroup that was removed under its processes


def identify(
    process: ProcessId | None, credentials: Credentials, token: str = "", cgroups: tuple[str, ...] | None = None
) -> Identity:
    """Return the identity; only the ids if the process has ended, or another one has its pid.

    token, cgroups: which were read before (client_facts.py).  None: read its cgroups now; raise Unreadable if that fails.
    """
    if process is None:
        return Identity(None, credentials.uid, credentials.gid)
    if cgroups is None:
        lacked = processes.lacks_first_thread(process)
        try:
            look = read_cgroup(process.pid)
        except OSError as exc:
            raise Unreadable(_UNREAD.format(os.strerror(exc.errno or 0))) from None
        if trouble := why_not_known(process, lacked, look):
            raise Unreadable(trouble)
        cgroups = parsed(look.text)
    if not processes.is_alive(process):
        return Identity(process, credentials.uid, credentials.gid)
    return Identity(
        process,
        credentials.uid,
        credentials.gid,
        cgroups,
        token if len(token) <= _TOKEN_CHARACTERS else "",
        describe(cgroups),
    )


def paths(pid: int) -> tuple[str, ...]:
    """Return the process's present path in each hierarchy; empty if it has ended, or they cannot be read."""
    with suppress(OSError):
        return parsed(read_cgroup(pid).text)
    return ()


def why_not_known(process: ProcessId, lacked: bool, look: CgroupLook) -> str:
    """Return why its cgroups are not those that it showed; empty if they are, or it has ended.

    lacked: whether it lacked its first thread before the look.  Version 1 shows the root as the cgroup of a thread that has
    ended.  A thread that executes a program becomes the first one, so the look was twofold, and the first thread has to have
    been there before, in between and after that.
    """
    lacks = processes.lacks_first_thread(process)  # at once: to see that it is alive can take a millisecond
    if not processes.is_alive(process):
        return ""
    if lacked or lacks or _lacked_first_thread(look):
        return (
            f"pid {process.pid} has ended its first thread, which shows its cgroups and what it was started with, "
            "or could not be read"
        )
    return "" if look.text or not _ARE_SHOWN else _UNREAD.format("they change, or its first thread does")


def read_cgroup(pid: int) -> CgroupLook:
    """Return a process's cgroups.  Raise OSError, as for a path of more than 4,096 bytes."""
    try:
        return processes.cgroup_reader.cgroup(pid)
    except OSError as exc:
        if exc.errno in processes.GONE:
            return CgroupLook()
        raise


def _lacked_first_thread(look: CgroupLook) -> bool:
    stat = parse_stat(look.stat)
    return stat is None or stat.is_over


def parsed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse_cgroups(text)))


def parse_cgroups(text: str) -> Iterator[str]:
    """Yield the paths of /proc/PID/cgroup, ID:CONTROLLERS:PATH a line.

    The root of a hierarchy identifies nothing and is omitted.
    """
    for line in text.split("\n"):  # only a newline ends a line: names may hold any other character
        path = line.split(":", 2)[-1].removesuffix(_DELETED)
        if path.startswith("/") and path != "/":
            yield path


def unified_hierarchy() -> Path | None:
    """Return where cgroup v2 is mounted, alone or together with version 1.

    Call it at the start: users delay the read (mounts.py).
    """
    with suppress(OSError):
        return next((Path(os.fsdecode(point)) for point, kind in mounted() if kind == b"cgroup2"), None)
    return None


def unified_path(text: str) -> str | None:
    """Return the path in the unified hierarchy from the contents of /proc/PID/cgroup; None without one, or in the root."""
    for line in text.split("\n"):  # as in parse_cgroups
        if line.startswith("0::/") and (path := line[3:]) != "/":
            return path
    return None
