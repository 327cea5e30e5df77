"""Kill the vendor processes of a domain that have survived: servers without a daemon, a daemon that never listened.

mpsd kills only processes that it has recorded, and its own children.  It records the servers that the daemon listed, and the
daemon's children before it kills the daemon; their start times identify them.  Orphaned daemons become children of mpsd
(host/child_reaper.py); the environment that mpsd gave them names their domain.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.model.process import ProcessId

log = structlog.get_logger()
DIRECTORY_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_COMMAND = "nvidia-cuda-mps"  # the names of the daemon and its servers, as the kernel cuts them to 15 bytes
_MOST_RECORDED = 256  # a domain has one server for each user, and few at a time


class Leftovers:
    """Guards that mpsd kills only processes of this pipe directory."""

    def __init__(self, pipe_directory: Path, inspector: Inspector) -> None:
        self._pipe_directory = str(pipe_directory)
        self._inspector = inspector
        self._recorded: set[ProcessId] = set()

    def record(self, pids: Iterable[int]) -> None:
        """Record servers that the daemon listed, or the daemon's children."""
        self._recorded = {each for each in self._recorded if processes.is_alive(each)}
        for pid in pids:
            if len(self._recorded) < _MOST_RECORDED and (found := processes.find(pid)):
                self._recorded.add(found)

    def record_children(self, daemon: ProcessId) -> None:
        """Record the daemon's children.  Call it before the daemon is killed: afterwards they have another parent."""
        self.record(pid for pid in processes.children(daemon.pid) if is_vendors(pid))

    async def sweep(self) -> int:
        """Kill the recorded processes and the children that are left; return their number."""
        recorded, self._recorded = self._recorded, set()
        swept = sum(kill(each) for each in recorded if is_vendors(each.pid))
        for pid in processes.children(os.getpid()):
            if is_vendors(pid) and (process := processes.find(pid)) and await self._is_ours(process):
                swept += kill(process)
        return swept

    async def _is_ours(self, process: ProcessId) -> bool:
        try:
            facts = await self._inspector.facts(process.pid, [DIRECTORY_VARIABLE])
        except Unreadable as exc:
            log.warning("domain.not_swept", pid=process.pid, why=str(exc), effect="it is left to itself")
            return False
        return facts is not None and facts.variables.get(DIRECTORY_VARIABLE) == self._pipe_directory


def is_vendors(pid: int) -> bool:
    return is_vendors_name(processes.command(pid))


def is_vendors_name(command: str) -> bool:
    return command.startswith(_COMMAND)


def kill(process: ProcessId) -> bool:
    """Kill the process, or log why not.  Return whether it was killed."""
    try:
        return processes.kill(process)
    except OSError as exc:
        log.warning("domain.not_swept", pid=process.pid, why=exc.strerror, effect="it is left to itself")
        return False
