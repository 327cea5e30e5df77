"""Suspend processes: a whole cgroup by the freezer of cgroup v2, or each process by SIGSTOP.

cgroup.freeze is documented in the kernel's admin-guide/cgroup-v2.rst; SIGKILL still ends a frozen process.  Version 1 is
not used.  Prose: docs/ending.md.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import structlog
import trio

from mpsd.host import processes
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_FREEZE_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_STOPPED = "tT"


class CgroupFreezer:
    """Freezes one directory of the unified hierarchy.  Guards that only a cgroup that mpsd froze is thawed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_ours = False

    async def freeze(self) -> bool:
        """Freeze the cgroup.

        Returns False, without a change, if mpsd may not freeze it, it is frozen already, or it does not freeze in time.
        """
        try:
            if (self._directory / "cgroup.freeze").read_text().strip() != "0":
                return False
            self._write("1")
        except OSError as exc:
            log.info("cgroup.not_frozen", cgroup=str(self._directory), why=exc.strerror)
            return False
        self._is_ours = True
        with trio.move_on_after(_FREEZE_SECONDS):
            while not self._is_frozen():  # noqa: ASYNC110  cgroup.events notifies by inotify, which is harder to get right
                await trio.sleep(_LOOK_SECONDS)
            log.info("cgroup.frozen", cgroup=str(self._directory))
            return True
        self.thaw()
        return False

    def thaw(self) -> None:
        if not self._is_ours:
            return
        self._is_ours = False
        try:
            self._write("0")
        except OSError as exc:  # removed with its last process
            log.info("cgroup.not_thawed", cgroup=str(self._directory), why=exc.strerror)

    def pids(self) -> set[int]:
        """Return the pids of all processes that would be frozen.  Raises OSError."""
        found: set[int] = set()
        for directory, _, files in os.walk(self._directory):
            if "cgroup.procs" in files:
                found.update(map(int, Path(directory, "cgroup.procs").read_text().split()))
        return found

    def _write(self, text: str) -> None:
        (self._directory / "cgroup.freeze").write_text(text)

    def _is_frozen(self) -> bool:
        try:
            return "frozen 1" in (self._directory / "cgroup.events").read_text().splitlines()
        except OSError:
            return True  # it was removed


class SignalFreezer:
    """Freezes processes, each by its pidfd.  Guards that a process that was already stopped is not continued."""

    def __init__(self) -> None:
        self._ours: dict[ProcessId, int] = {}

    def freeze(self, process: ProcessId, pidfd: int) -> str:
        """Stop a process; return why it failed, empty on success."""
        if processes.state(process.pid) in _STOPPED:
            return ""
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        except OSError as exc:
            return f"SIGSTOP: {exc.strerror}"
        self._ours[process] = pidfd
        return ""

    def thaw(self, wanted: Iterable[ProcessId]) -> None:
        for process in wanted:
            pidfd = self._ours.pop(process, None)
            if pidfd is None:
                continue
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it has ended
