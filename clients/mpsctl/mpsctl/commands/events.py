"""events: print events as they happen."""

import json
import time
from typing import TYPE_CHECKING, Any

from mpsd_client import Event, Lost

from mpsctl.output import visible
from mpsctl.session import Session

if TYPE_CHECKING:
    from rich.text import Text

LOST = "events.lost"
_HAPPENED = {
    "fault": "red", "dead": "red", "refused": "red", "silent": "red", "unserved": "red",
    "queued": "yellow", "expired": "yellow",
}  # fmt: skip


def follow(session: Session) -> int:
    """Print events until interrupted, until mpsd ends, or until --count of them were printed."""
    session.mpsd.subscribe(*(session.asked.topics or ["*"]))
    left = session.asked.count
    for event in session.mpsd.events():
        told = Event(LOST, session.out.surroundings.now(), {"count": event.count}) if isinstance(event, Lost) else event
        session.out.line(told, lambda told=told: _line(told))  # type: ignore[misc]
        if left is not None and (left := left - 1) == 0:
            break
    return 0


def _line(event: Event) -> "Text":
    from rich.text import Text

    family, _, what = event.topic.partition(".")
    line = Text(no_wrap=True, overflow="ignore")
    line.append(_clock(event.time), style="dim")
    line.append(f" {visible(event.topic)}", style=_HAPPENED.get(what) or _HAPPENED.get(family) or "bold")
    for name, value in event.facts.items():
        line.append(f" {visible(name)}=", style="dim")
        line.append(word(value))
    return line


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment)) + f".{int(moment * 1000) % 1000:03}"


def word(value: Any) -> str:
    """Return a value as one word, quoted as JSON if it has spaces, quotes or =, so that it cannot look like several facts."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' ="'):
        return value
    return visible(json.dumps(value, ensure_ascii=False))
