"""A process that stands still for a moment, and goes on even if this one is killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STOP_SECONDS = 2.0  # until all its threads stand: one in a system call that cannot be interrupted takes longer
POLL_SECONDS = 0.001
# A separate process: it lets the other one go on when this one ends, however it does, or when the time is up.
GUARD = """
import select, signal, sys
select.select([0], [], [], float(sys.argv[1]))
signal.pidfd_send_signal(int(sys.argv[2]), signal.SIGCONT)
"""


class CannotStop(Exception):
    """The process has ended, is another user's, or does not stop."""


class Standstill:
    """Guards that the process goes on: at the end of the `with`, after `most_seconds`, and if this process is killed."""

    def __init__(self, pid: int, start_time: int, most_seconds: float) -> None:
        """start_time: of the process, field 22 of /proc/PID/stat.  Raises CannotStop."""
        self._pid, self.seconds = pid, 0.0
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise CannotStop(f"process {pid} has ended") from None
        try:
            if _start_time(pid) != start_time:
                raise CannotStop(f"process {pid} has ended, and another one has its pid")
            words = [sys.executable, "-I", "-S", "-c", GUARD, str(most_seconds), str(self._pidfd)]
            self._guard = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[self._pidfd], start_new_session=True)
        except BaseException:
            os.close(self._pidfd)
            raise
        self._began: float | None = None

    def stop(self) -> None:
        """Stop it, and return when all its threads stand.  Raises CannotStop."""
        if self._is_standing():
            raise CannotStop(f"process {self._pid} is stopped already, by another program or a debugger")
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        except (ProcessLookupError, PermissionError) as exc:
            raise CannotStop(f"process {self._pid}: {exc.strerror}") from None
        self._began = time.monotonic()
        while not self._is_standing():
            if time.monotonic() > self._began + STOP_SECONDS:
                raise CannotStop(f"process {self._pid} did not stop within {STOP_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _is_standing(self) -> bool:
        try:
            threads = [path.read_text(errors="replace") for path in Path(f"/proc/{self._pid}/task").glob("*/stat")]
        except OSError:
            return False
        return bool(threads) and all(text.rpartition(")")[2].split()[0] in "TtZX" for text in threads)

    def go_on(self) -> None:
        """Let it go on, if it was stopped."""
        if self._began is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        self.seconds, self._began = time.monotonic() - self._began, None

    def __enter__(self) -> "Standstill":
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on()
        self._guard.kill()
        self._guard.communicate()
        os.close(self._pidfd)


def _start_time(pid: int) -> int | None:
    """Return when the process that has the pid now started; None if none has it."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None
