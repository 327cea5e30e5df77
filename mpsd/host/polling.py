"""Look at one descriptor with poll(2), and wait for the end of a process."""

import errno
import select
from typing import Any

import trio

_LOOK_SECONDS = 1.0  # between looks at a process that mpsd cannot watch


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
    still, epoll reports the socket's hang-up under the number.  If the kernel lets mpsd watch nothing more
    (epoll_ctl(2): ENOSPC, ENOMEM), it looks from time to time.
    """
    while True:
        try:
            await trio.lowlevel.wait_readable(pidfd)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            await trio.sleep(_LOOK_SECONDS)
        if is_readable(pidfd):
            return
