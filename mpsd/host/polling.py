"""Look at one descriptor with poll(2), and wait for it, or for the end of a process."""

import errno
import select
from typing import Any

import trio

_LOOK_SECONDS = 1.0  # between looks at a descriptor that mpsd cannot watch


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


async def until_perhaps_readable(descriptor: Any) -> None:
    """Wait until the descriptor may be readable: the caller has to look.

    It returns from time to time if the kernel lets mpsd watch nothing more (epoll_ctl(2): ENOSPC, ENOMEM).
    """
    try:
        await trio.lowlevel.wait_readable(descriptor)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.ENOMEM):
            raise
        await trio.sleep(_LOOK_SECONDS)


async def until_readable(descriptor: Any) -> None:
    """Wait until the descriptor is readable.

    That trio wakes the task does not prove it: if a socket had this number before, and another process has that socket open
    still, epoll reports the socket's hang-up under the number.
    """
    while True:
        await until_perhaps_readable(descriptor)
        if is_readable(descriptor):
            return


async def until_ended(pidfd: int) -> None:
    """Wait until the process has ended."""
    await until_readable(pidfd)
