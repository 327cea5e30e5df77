"""The fields of /proc/PID/stat that mpsd uses (proc(5)): of a process, or of one of its threads."""

import signal

from msgspec import Struct

_PARENT, _FLAGS, _THREADS, _START_TIME, _PENDING, _EXIT_CODE = 4, 9, 20, 22, 31, 52
_KILLED = 1 << signal.SIGKILL - 1  # of _PENDING
_PF_EXITING = 0x4  # of _FLAGS, linux/sched.h; set before a dying process's descriptors are closed


class Stat(Struct, frozen=True):
    """What the kernel shows.  parent: 0 if it is in another pid namespace.  threads: of the whole process.

    exit_code: as in wait(2), once the thread is over; 0 if mpsd may not see it.
    """

    state: str
    parent: int
    flags: int
    threads: int
    start_time: int
    pending: int
    exit_code: int

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, or is ending."""
        return self.state in ("Z", "X") or bool(self.flags & _PF_EXITING)

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL has been sent to the thread."""
        return bool(self.pending & _KILLED)


def parse_stat(text: bytes) -> Stat | None:
    """Parse the contents of /proc/PID/stat; None if they are not whole."""
    fields = text[text.rfind(b")") + 2 :].split()  # the command name may contain spaces and parentheses
    if len(fields) <= _EXIT_CODE - 3:
        return None
    try:
        numbers = [int(fields[each - 3]) for each in (_PARENT, _FLAGS, _THREADS, _START_TIME, _PENDING, _EXIT_CODE)]
    except ValueError:
        return None
    return Stat(fields[0].decode(errors="replace"), *numbers)
