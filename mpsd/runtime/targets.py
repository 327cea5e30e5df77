"""Whom a stop means: a process, or the clients in a cgroup or container; and what must not be stopped with them.

Prose: docs/ending.md, "client.stop".
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from mpsd import cgroups, processes, stop
from mpsd.domains.pool import Pool
from mpsd.errors import BadRequest, NoSuchClient
from mpsd.model import ProcessId
from mpsd.runtime import freezer
from mpsd.runtime.freezer import CgroupFreezer
from mpsd.stop import Asker, Target, TargetKind

_OUR_PROGRAMS = ("nvidia-cuda-mps", "mpsd-keeper")  # control daemons, servers, the keeper: all clients' lives hang on them


class Targets:
    """Guards that nobody finds what is another's, and that nobody stops mpsd, a vendor daemon or a server by this way.

    admitted: clients that admission knows, those that wait included.
    """

    def __init__(self, pool: Pool, admitted: Callable[[], Iterable[ProcessId]]) -> None:
        self._pool = pool
        self._admitted = admitted

    def resolve(self, target: Target, asker: Asker) -> Target:
        """With the asker's own cgroup or container for SELF.  Raises BadRequest."""
        if target.value != stop.SELF or target.kind is TargetKind.PID:
            return target
        paths = cgroups.paths(asker.pid)
        if target.kind is TargetKind.CONTAINER:
            own = stop.container_of(paths)
        else:
            own = freezer.unified_path(asker.pid) or next(iter(paths), None)
        if own is None:
            raise BadRequest(f"mpsd sees you as pid {asker.pid}, in no {target.kind.value} that it could name")
        return replace(target, value=own)

    def find(self, target: Target, asker: Asker) -> tuple[list[ProcessId], int]:
        """The processes that the asker may end, and how many clients are another's.  Raises NoSuchClient, BadRequest."""
        if target.kind is TargetKind.PID:
            return [self._find_process(int(target.value), target.start_time, asker)], 0
        inside = [each for each in sorted(self._clients()) if stop.branch(cgroups.paths(each.pid), target, asker)]
        mine = [each for each in inside if asker.may_end(_owner(each.pid))]
        return mine, len(inside) - len(mine)

    def freezer(self, target: Target, asker: Asker, members: Iterable[ProcessId]) -> CgroupFreezer | None:
        """For the whole target, where it is a cgroup of version 2 and everything in it is the asker's; None: one by one."""
        mount = freezer.unified_hierarchy()
        paths = [path for each in members if (path := freezer.unified_path(each.pid))]
        top = stop.branch(paths, target, asker) if target.kind is not TargetKind.PID else None
        if mount is None or top is None or ".." in top.split("/"):  # a cgroup outside of mpsd's own cgroup namespace
            return None
        found = CgroupFreezer(mount.joinpath(*Path(top).parts[1:]))
        try:
            pids = found.pids()
        except OSError:
            return None
        may_be = all(pid and not _is_ours(pid) and asker.may_end(_owner(pid)) for pid in pids)
        return found if pids and may_be else None

    def _find_process(self, pid: int, start_time: int, asker: Asker) -> ProcessId:
        process = processes.process_id(pid)
        if process is None or start_time not in (0, process.start_time) or not asker.may_end(_owner(pid)):
            raise NoSuchClient(f"no client has pid {pid}")
        if _is_ours(pid):
            raise BadRequest(f"pid {pid} is mpsd's own or one that clients need; `quit` ends those")
        return process

    def _clients(self) -> set[ProcessId]:
        pids = {pid for domain in self._pool.domains.values() for pid in domain.client_pids}
        listed = {process for pid in pids if (process := processes.process_id(pid))}
        placed = {process for domain in self._pool.domains.values() for process in domain.members}
        return {each for each in listed | placed | set(self._admitted()) if processes.is_alive(each)}


def _owner(pid: int) -> int | None:
    found = processes.owner(pid)
    return found[0] if found else None


def _is_ours(pid: int) -> bool:
    return pid in (1, os.getpid()) or processes.program_name(pid).startswith(_OUR_PROGRAMS)
