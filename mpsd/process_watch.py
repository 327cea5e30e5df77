"""Wait for the ends of processes that are not mpsd's children."""

import os

import trio

from mpsd import processes
from mpsd.model import ProcessId
from mpsd.process_ending import Ending, how_ended

_AGAIN_SECONDS = 0.5


async def wait_ended(process: ProcessId) -> Ending | None:
    """Return when the process has ended, with its ending if known.  Waits as long as it lives.

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
            await trio.lowlevel.wait_readable(pidfd)
            return how_ended(pidfd, process)
        finally:
            os.close(pidfd)
