"""The common values: devices, processes, clients, fault domains.

Frozen, without behaviour beyond properties of their own.  No I/O, no clock.
"""

from msgspec import Struct

MOST_PID = 1 << 22  # PID_MAX_LIMIT of linux/threads.h, on 64 bits


class ProcessId(Struct, frozen=True, order=True):
    """A process, distinguished from later ones that reuse its pid.

    start_time: clock ticks after boot, field 22 of /proc/PID/stat; 0 if it cannot be known (other pid namespace).
    """

    pid: int
    start_time: int


class Credentials(Struct, frozen=True):
    """The contents of SCM_CREDENTIALS; pid 0 is a process outside mpsd's pid namespace."""

    pid: int
    uid: int
    gid: int
