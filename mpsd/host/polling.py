"""Look at one descriptor with poll(2)."""

import select
from typing import Any


def is_readable(descriptor: Any, seconds: float = 0.0) -> bool:
    """Return whether it is readable now or within `seconds`; a pidfd is once its process has ended.  Blocks until then."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
