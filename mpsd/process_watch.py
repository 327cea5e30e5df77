"""Waiting for the ends of processes that are nobody's children here."""

import os

import trio

from mpsd import processes
from mpsd.model import ProcessId
from mpsd.process_ending import Ending, how_ended

_AGAIN_SECONDS = 0.5


async def wait_ended(process: ProcessId) -> Ending | None:
    """Return when the process has ended: how, where that can be told.  For as long as it lives.

    Without a descriptor to spare it is looked for now and then, until one can be had: that mpsd cannot see the end of a process
    is no sign that it has ended.
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
