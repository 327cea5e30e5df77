"""The arena after the work is done, with its memory and its forward state: it stays for later readers, or is removed."""

import time

from mpsd_client import ErrorCode, Refused, calls

from mpsctl.starter.mpsd_connection import Away, MpsdConnection
from mpsctl.starter.reports import Reporter

_HELD_SECONDS = 10.0  # how long members that have just ended may still hold the arena
_AGAIN_SECONDS = 0.1


def settle(connection: MpsdConnection, name: str, reporter: Reporter, *, is_removed: bool) -> None:
    """Remove the arena if is_removed, and print whether it stays."""
    why = _remove(connection, name) if is_removed else f"`mpsctl arena remove {name}` removes it"
    if why:
        reporter.report("arena_stays", f"the arena stays, with its memory and its forward state: {why}", why=why)
    else:
        reporter.report("arena_removed", "the arena is removed, with its memory and its forward state")


def _remove(connection: MpsdConnection, name: str) -> str:
    """Remove the arena.  Return why that failed, or an empty text."""
    until = time.monotonic() + _HELD_SECONDS
    while True:
        try:
            connection.ask(calls.arena_remove(name))
        except Refused as exc:
            if exc.code == ErrorCode.ARENA_BUSY and time.monotonic() < until:
                time.sleep(_AGAIN_SECONDS)
                continue
            return "" if exc.code == ErrorCode.NO_SUCH_ARENA else exc.message
        except Away as exc:
            return str(exc)
        return ""
