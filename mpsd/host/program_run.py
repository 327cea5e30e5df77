"""Run a program to its end from the event loop."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import trio

from mpsd.host.child import Child
from mpsd.host.descriptors import close_all
from mpsd.host.inspector import Inspector
from mpsd.host.polling import until_ended
from mpsd.threads import run_in_thread

_KILLED_SECONDS = 5.0  # a killed program ends at once, unless it waits in the kernel
_PIPE_BYTES = 65536  # a new pipe takes as much without a reader


async def run_program(
    inspector: Inspector, command: Sequence[str], text: bytes, environment: Mapping[str, str], uid: int | None = None
) -> tuple[int, bytes]:
    """Give the program this input; return its exit status and its output, once it has ended and all copies of its output have
    been closed.  If cancelled, it is killed.  Raises OSError if it cannot be started.

    uid: its user, without a group; None: mpsd's.
    """
    assert len(text) <= _PIPE_BYTES, "the pipe takes it before the program reads"
    (reads, says), (hears, writes) = _two_pipes()
    with ExitStack() as files:
        for end in (says, hears):
            files.callback(os.close, end)
        output = trio.lowlevel.FdStream(reads)
        os.write(writes, text)
        os.close(writes)
        start = partial(inspector.start_program, command, environment, (hears, says, says), uid)
        try:
            child = await run_in_thread(start)  # not abandoned: it ends in seconds, and may have started a process
        except BaseException:
            output.close()
            raise
    said = bytearray()
    try:
        async with output:
            async for some in output:
                said += some
        await until_ended(child.pidfd)
    except BaseException:
        await _end(child)
        raise
    return child.reap(), bytes(said)


def _two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return two pipes, or raise OSError and keep none."""
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        close_all(first)
        raise


async def _end(child: Child) -> None:
    child.kill()
    with trio.move_on_after(_KILLED_SECONDS, shield=True):
        await until_ended(child.pidfd)
    if child.has_ended():
        child.reap()
    else:
        os.close(child.pidfd)  # the reaper of orphans takes it later
