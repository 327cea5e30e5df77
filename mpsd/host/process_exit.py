"""How a process ended: by itself or by a signal, for processes that are not mpsd's children.

While a process is ending, and as a zombie, /proc/PID/stat has it; once its parent has taken its status, its pidfd has it, from
Linux 6.15 on.  Before that, an end that was not seen in time stays unknown.
"""

import fcntl
import os
import struct
from contextlib import nullcontext

import trio
from msgspec import Struct

from mpsd.host import processes
from mpsd.host.polling import until_ended
from mpsd.model.process import ProcessId

_INFO = struct.Struct("<QQIIIIIIIIIIIi")  # struct pidfd_info, its first version: mask, cgroup, eleven ids, exit code
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # PIDFD_GET_INFO of linux/pidfd.h
_INFO_EXIT = 1 << 3
_AGAIN_SECONDS = 0.5


class ProcessExit(Struct, frozen=True):
    """How a process ended.  signal: 0 if it ended by itself, with `status`.  Both as in wait(2)."""

    signal: int
    status: int

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal else f"status {self.status}"


def how_ended(pidfd: int, process: ProcessId) -> ProcessExit | None:
    """Return the ending of a process, once its pidfd is readable; None if it is not known any more."""
    return _told_by(pidfd) or how_it_is_ending(process)


def how_it_is_ending(process: ProcessId) -> ProcessExit | None:
    """Return the ending from /proc; None if the process is not ending yet, or has gone."""
    if processes.is_alive(process):  # also one of which only the first thread has ended
        return None
    stat = processes.read_stat(process.pid)
    return decode(stat.exit_code) if stat and stat.start_time == process.start_time and stat.is_over else None


def decode(wait_status: int) -> ProcessExit:
    return ProcessExit(wait_status & 0x7F, wait_status >> 8 & 0xFF)


def _told_by(pidfd: int) -> ProcessExit | None:
    buffer = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer, True)
    except OSError:
        return None  # no such ioctl before 6.13
    mask, *_, exit_code = _INFO.unpack(buffer)
    return decode(exit_code) if mask & _INFO_EXIT else None


async def wait_ended(process: ProcessId, turns: trio.Semaphore | None = None) -> ProcessExit | None:
    """Return when the process has ended, with its ending if known.  Waits as long as it lives.

    turns: how many tasks that wait with it go on in one turn of the event loop: to find an ending takes some system calls.
    If mpsd has no descriptor left, it checks the process now and then until it gets one: that mpsd cannot watch a process does
    not mean that it has ended.
    """
    while True:
        try:
            pidfd = processes.open_pidfd(process)
        except OSError:
            if not processes.is_alive(process):
                return None
            await trio.sleep(_AGAIN_SECONDS)
            continue
        if pidfd is None:
            return None
        try:
            await until_ended(pidfd)
            async with turns or nullcontext():
                return how_ended(pidfd, process)
        finally:
            os.close(pidfd)
