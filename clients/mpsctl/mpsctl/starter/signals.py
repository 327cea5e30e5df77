"""The signals by which a starter is told to end, or to start all members anew."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def heard(take: Callable[[int], None]) -> Iterator[None]:
    """What was ignored stays ignored, as by nohup."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, lambda number, frame: take(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
