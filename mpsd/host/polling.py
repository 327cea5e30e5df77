"""Look at one descriptor with poll(2), and wait for the end of a process."""

import select
from typing import Any

import trio


def is_readable(descriptor: Any, seconds: float = 0.0) -> bool:
    """Return whether it is readable now or within `seconds`; a pidfd is once its process has ended.  Blocks until then."""
    return _is_ready(descriptor, select.POLLIN, seconds)


def has_room(sock: Any) -> bool:
    """Return whether a socket can be written to now."""
    return _is_ready(sock, select.POLLOUT, 0.0)


def _is_ready(descriptor: Any, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000))


async def until_ended(pidfd: int) -> None:
    """Wait until the process has ended.

    That trio wakes the task does not prove it: if a socket had this number before, and another process has that socket open
    still, epoll reports the socket's hang-up under the number.
    """
    while True:
        await trio.lowlevel.wait_readable(pidfd)
        if is_readable(pidfd):
            return
