"""Search all processes, of which users may hold some: those are named, and hide no others."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from mpsd.errors import ProtocolError
from mpsd.host import processes
from mpsd.host.process_reader import ProcessReader, Unanswered

_T = TypeVar("_T")
SEARCH_SECONDS = 5.0  # mpsd begins to serve only afterwards, and systemd waits for 90 s
_MOST_NAMED = 16


def search(
    look: Callable[[int, ProcessReader], _T | None], clock: Callable[[], float] = time.monotonic
) -> tuple[list[_T], str]:
    """Return what `look` returns of each process, and which processes it did not read; empty: it read all.

    look: raises OSError, also for a process that has gone.  Its reader is for this search alone, so that mpsd can read the
    process that it starts next; a held process takes it 40 ms.
    """
    found, unread, until, is_over = list[_T](), list[str](), clock() + SEARCH_SECONDS, False
    reader = processes.searcher.for_each_apart()
    try:
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            if is_over := clock() > until:
                break
            try:
                if (each := look(pid, reader)) is not None:
                    found.append(each)
            except Unanswered:
                unread.append(str(pid))
            except (OSError, ProtocolError):
                pass  # it has gone, or is hidden
    finally:
        reader.close()
    missing = [f"processes that were not read ({len(unread)}): {', '.join(unread[:_MOST_NAMED])}"] if unread else []
    if is_over:
        missing.append(f"{SEARCH_SECONDS:.0f} s were over before all were read")
    return found, "; ".join(missing)
