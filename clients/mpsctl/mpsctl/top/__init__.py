"""top: the screen with clients, domains, leases and the rest, live; or a table of clients, once or as JSON after each event."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpsd_client import Disconnected, values

from mpsctl import words
from mpsctl.output import NOTHING, Column, table
from mpsctl.quantities import show_duration, show_percent, show_size
from mpsctl.session import NoMpsd, Session
from mpsctl.top.clients import Row, TopView
from mpsctl.top.watch import MOST_CLIENTS, Watch

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

REFRESH_SECONDS = 1.0

COLUMNS: Sequence[Column[Row]] = (
    Column("PID", lambda row: row.pid, is_number=True),
    Column("USER", lambda row: row.user, may_be_cut=True, least=6),
    Column("CONTAINER", lambda row: row.container, may_be_cut=True, least=9),
    Column("DOMAIN", lambda row: row.domain, may_be_cut=True, least=7),
    Column("SM", lambda row: _sms(row.sm_reserved_count, row.sm_asked_percent), is_number=True),
    Column("HELD", lambda row: words.sms(row.sm_held_count, row.sm_held_percent), is_number=True),
    Column("MEM", lambda row: _size(row.memory_asked_bytes), is_number=True),
    Column("HELD", lambda row: _size(row.memory_held_bytes), is_number=True),
    Column("STATE", lambda row: row.state),
    Column("FAULTS", lambda row: row.faults or NOTHING, is_number=True),
)


def follow(session: Session) -> int:
    """Show the screen on a terminal; without one, or with --once, print one table; with --json an object after each event."""
    out = session.out
    if not (session.asked.once or out.is_json) and out.surroundings.has_screen and os.isatty(0) and os.isatty(2):
        from mpsctl.top import app  # with Textual, whose import takes longer than most commands

        return app.run(session)
    if session.asked.once or not out.is_json:
        shown = Watch(session.mpsd, session).look(MOST_CLIENTS)
        out.document(shown, lambda: view(shown, out.surroundings.width))
        return 0
    session.mpsd  # noqa: B018  an mpsd that is not running at the start is an error
    while True:
        try:
            _lines(session)
        except (NoMpsd, Disconnected, TimeoutError):
            session.close()
            time.sleep(REFRESH_SECONDS)


def _lines(session: Session) -> None:
    watch = Watch(session.mpsd, session)
    watch.mpsd.subscribe("*")
    while True:
        session.out.line(watch.look(MOST_CLIENTS), str)
        watch.wait(REFRESH_SECONDS)


def view(shown: TopView, width: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [Text(line, no_wrap=True, overflow="ellipsis") for line in _title(shown)]
    lines += ["", table(COLUMNS, shown.clients, "no clients", width)]
    if shown.hidden:
        lines.append(f"and {shown.hidden} more")
    return Group(*lines)


def _title(shown: TopView) -> Sequence[str]:
    status = shown.status
    clock = time.strftime("%H:%M:%S", time.localtime(shown.time))
    return (
        f"{clock}  mpsd {status.version} is {status.state}, up {show_duration(status.uptime_seconds)}; "
        f"domains: {_counts(status.domains)}",
        f"clients: {_counts(shown.states)}; leases: {status.leases_active} active, {status.leases_queued} queued"
        f"{_services(status)}",
    )


def _services(status: values.Status) -> str:
    """Return the count of services for the title, empty without services."""
    unserved = f" ({status.services_unserved} unserved)" if status.services_unserved else ""
    return f"; services: {status.services}{unserved}" if status.services else ""


def _counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"


def _sms(count: int | None, percent: float | None) -> str | None:
    return str(count) if count is not None else None if percent is None else show_percent(percent)


def _size(size: int | None) -> str | None:
    return None if size is None else show_size(size)
