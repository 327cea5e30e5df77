"""The signals that end a starter (SIGTERM, SIGINT) or make it replace all members (SIGHUP)."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def heard(take: Callable[[int], None]) -> Iterator[None]:
    """Call `take` with the number of each signal.  Signals that were ignored, as by nohup, stay ignored."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, lambda number, frame: take(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
