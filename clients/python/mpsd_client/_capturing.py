"""Arenas of standbys during the capture of a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager

from mpsd_client._service import opened_services


@contextmanager
def capturing() -> Iterator[None]:
    """Map the arenas of services writable inside the `with` block.  A capture runs nothing, but CUDA refuses (error 1) to
    capture a copy into memory that is mapped read-only.  What a rehearsal writes is mapped writable already."""
    opened = [service._arena for service in list(opened_services) if service._arena is not None and not service._is_closed]
    arenas = [arena for arena in opened if not arena._is_rehearsing]
    before = [(arena, arena._set_writable(True)) for arena in arenas]
    try:
        yield
    finally:
        for arena, was_writable in before:
            if not was_writable:
                arena._set_writable(False)
