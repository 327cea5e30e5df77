"""The arena after the work is done, with its memory and its forward state: it stays for later readers, or is removed."""

import time

from mpsd_client import ErrorCode, Refused, calls

from mpsctl.starter.line import Away, Line
from mpsctl.starter.telling import Teller

_HELD_SECONDS = 10.0  # how long members that have just ended may still hold the arena
_AGAIN_SECONDS = 0.1


def settle(line: Line, name: str, teller: Teller, *, is_removed: bool) -> None:
    """Remove the arena if is_removed, and print whether it stays."""
    why = _remove(line, name) if is_removed else f"`mpsctl arena remove {name}` removes it"
    if why:
        teller.tell("arena_stays", f"the arena stays, with its memory and its forward state: {why}", why=why)
    else:
        teller.tell("arena_removed", "the arena is removed, with its memory and its forward state")


def _remove(line: Line, name: str) -> str:
    """Remove the arena.  Return why that failed, or an empty text."""
    until = time.monotonic() + _HELD_SECONDS
    while True:
        try:
            line.ask(calls.arena_remove(name))
        except Refused as exc:
            if exc.code == ErrorCode.ARENA_BUSY and time.monotonic() < until:
                time.sleep(_AGAIN_SECONDS)
                continue
            return "" if exc.code == ErrorCode.NO_SUCH_ARENA else exc.message
        except Away as exc:
            return str(exc)
        return ""
