"""Which members of a service are whose: a child, and whoever is in its process group, is one.

mpsd tells pids as it sees them, and a starter in a container sees others; when a process began is the same for both.
"""

import os
from collections.abc import Iterable, Mapping, Set

from mpsd_client import values

Process = tuple[int, int]  # pid and start time
_GROUP, _START_TIME = 5, 22  # fields of /proc/PID/stat, proc(5)


def groups(leaders: Iterable[int]) -> Mapping[int, Set[Process]]:
    """The processes of each of these process groups, as this pid namespace sees them; zombies too."""
    found: dict[int, set[Process]] = {leader: set() for leader in leaders}
    for entry in os.listdir("/proc") if found else ():
        if entry.isdecimal() and (seen := _look(int(entry))) is not None and seen[0] in found:
            found[seen[0]].add((int(entry), seen[1]))
    return found


def _look(pid: int) -> tuple[int, int] | None:
    """Its process group and when it began; None where nothing is left of it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()  # from the third on
    except OSError:
        return None
    return int(fields[_GROUP - 3]), int(fields[_START_TIME - 3])


def is_in(process: Process, group: Set[Process], *, is_same_namespace: bool) -> bool:
    """process: as mpsd told it."""
    return process in group if is_same_namespace else process[1] in {start_time for _, start_time in group}


def eligible(clients: Iterable[tuple[Process, int | None]], uid: int, *, is_same_namespace: bool) -> set[Process]:
    """Those that may be a member's, of clients and their uids.

    Where pids differ, start times alone are compared, which clients of other users may have too."""
    return {process for process, owner in clients if is_same_namespace or owner == uid}


def share_out(
    members: Iterable[values.Member], found: Mapping[int, Set[Process]], *, is_same_namespace: bool
) -> tuple[Mapping[int, values.Member], tuple[values.Member, ...]]:
    """By leader, the one of its members that counts: who writes, else the first; and those that are nobody's."""
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
