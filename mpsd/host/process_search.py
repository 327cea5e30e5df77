"""Search all processes for some of mpsd's user.  Users may hold processes: those are named, and hide no others."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from mpsd.errors import ProtocolError
from mpsd.host import processes
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.host.process_stat import parse_stat
from mpsd.model.process import ProcessId

_T = TypeVar("_T")
SEARCH_SECONDS = 5.0  # mpsd begins to serve only afterwards, and systemd waits for 90 s
_MOST_NAMED = 16


def search(
    has_name: Callable[[str], bool],
    look: Callable[[ProcessId, ProcessReader], _T | None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[_T], str]:
    """Return what `look` returns of each process of mpsd's user with such a name (comm), and which it did not read; "": none.

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
                process = _named_process(pid, has_name, reader)
                if process is not None and (each := look(process, reader)) is not None:
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


def _named_process(pid: int, has_name: Callable[[str], bool], reader: ProcessReader) -> ProcessId | None:
    """Return the process if it has mpsd's user and the name, and has not ended.  Raises OSError.

    The owner comes first: to ask for it takes no read, and users choose how many of their processes have the name.
    """
    if (processes.owner(pid) or ())[:1] != (os.geteuid(),):
        return None
    if not has_name(reader.text(pid, "comm").removesuffix(b"\n").decode(errors="replace")):
        return None
    stat = parse_stat(reader.stat(pid))
    return None if stat is None or stat.is_over else ProcessId(pid, stat.start_time)
