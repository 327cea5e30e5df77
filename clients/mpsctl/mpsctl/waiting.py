"""Show on a terminal that an answer is still awaited: a line on standard error after two seconds, and each second then."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

AFTER_SECONDS = 2.0
EACH_SECONDS = 1.0


@contextmanager
def shown_wait(method: str, stderr: TextIO) -> Iterator[None]:
    """Count the seconds of a wait on standard error, and clear that line at its end; do nothing without a terminal."""
    if not stderr.isatty():
        yield
        return
    ended = threading.Event()
    counter = threading.Thread(target=_count, args=(method, stderr, ended), daemon=True)
    try:
        counter.start()
    except RuntimeError:  # no thread is left for this process: the wait is not shown
        yield
        return
    try:
        yield
    finally:
        ended.set()
        counter.join()


def _count(method: str, stderr: TextIO, ended: threading.Event) -> None:
    began, width = time.monotonic(), 0
    while not ended.wait(EACH_SECONDS if width else AFTER_SECONDS):
        line = f"waiting for mpsd's answer to {method}: {time.monotonic() - began:.0f} s"
        print(f"\r{line}", end="", file=stderr, flush=True)
        width = len(line)
    if width:
        print("\r" + " " * width + "\r", end="", file=stderr, flush=True)
