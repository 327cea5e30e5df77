"""Match the members of a service with the children of the starter: a child's processes are those in its process group.

mpsd reports pids of its own pid namespace, which differ from those in a container; start times are the same in both.
"""

import os
from collections.abc import Iterable, Mapping, Set

from mpsd_client import values

Process = tuple[int, int]  # pid and start time
_START_TIME = 22  # field of /proc/PID/stat, proc(5)


def groups(leaders: Iterable[int]) -> Mapping[int, Set[Process]]:
    """Return the processes of each process group, by its leader, with pids of this pid namespace; zombies included.

    Of other processes nothing is read: with some kernels a user can let a read of `stat` wait for ever (mpsd's
    docs/decisions/029-reads-of-clients-may-never-end.md)."""
    found: dict[int, set[Process]] = {leader: set() for leader in leaders}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc") if found else ())):
        try:
            if (group := os.getpgid(pid)) in found:
                found[group].add((pid, _start_time(pid)))
        except OSError:
            continue  # it is gone
    return found


def _start_time(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b") ")[2].split()[_START_TIME - 3])  # the third field and all after it


def is_in(process: Process, group: Set[Process], *, is_same_namespace: bool) -> bool:
    """Return whether the process is in the group.  process: the pid and start time that mpsd reports."""
    return process in group if is_same_namespace else process[1] in {start_time for _, start_time in group}


def eligible(clients: Iterable[tuple[Process, int | None]], uid: int, *, is_same_namespace: bool) -> set[Process]:
    """Return the clients that may belong to a member.  clients: processes with their uids.

    In another pid namespace only start times can be compared, so that clients of other users are left out."""
    return {process for process, owner in clients if is_same_namespace or owner == uid}


def share_out(
    members: Iterable[values.Member], found: Mapping[int, Set[Process]], *, is_same_namespace: bool
) -> tuple[Mapping[int, values.Member], tuple[values.Member, ...]]:
    """Return one member per group leader, the writer if the group has it, else the first; and the members outside all
    groups."""
    own: dict[int, values.Member] = {}
    others = []
    for member in members:
        process = (member.pid, member.start_time)
        leaders = (each for each, group in found.items() if is_in(process, group, is_same_namespace=is_same_namespace))
        leader = next(leaders, None)
        if leader is None:
            others.append(member)
        elif leader not in own or member.is_writer:
            own[leader] = member
    return own, tuple(others)
