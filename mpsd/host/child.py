"""A process that is a child of mpsd's."""

import os
import signal
from contextlib import suppress

from msgspec import Struct

from mpsd.host.polling import is_readable


class Child(Struct, eq=False):
    """Guards the pidfd of a child, until the child is reaped."""

    pid: int
    pidfd: int

    def kill(self) -> None:
        """Send SIGKILL.  The process may end later: some waits in the kernel ignore it."""
        with suppress(ProcessLookupError, PermissionError):  # mpsd has changed its user since
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Return whether it has ended now or within `seconds`.  Blocks until then."""
        return is_readable(self.pidfd, seconds)

    def reap(self) -> int:
        """Wait for its end, and return its exit status; a signal as a negative number."""
        status = 0
        with suppress(ChildProcessError):  # mpsd's reaper has taken it, and its pid may be another child's
            if found := os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED):
                status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        os.close(self.pidfd)
        return status
