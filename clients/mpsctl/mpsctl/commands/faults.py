"""The commands faults, fault, blame and pardon."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from mpsd_client import calls, values

from mpsctl import incident, words
from mpsctl.incident import Names
from mpsctl.output import Column, facts
from mpsctl.page import render_page
from mpsctl.quantities import show_duration
from mpsctl.session import Session
from mpsctl.timeline import draw, lanes

if TYPE_CHECKING:
    from rich.console import RenderableType

_PAGE = 1000


def list_faults(session: Session) -> int:
    found = list(_found(session))
    columns = _columns(session)
    session.out.document(found, lambda: session.out.table(columns, found, "no faults"))
    return 0


def _found(session: Session) -> Iterator[values.Incident]:
    """Yield faults in the order of their numbers; with --last, only the last ones."""
    asked = session.asked
    since = None if asked.since is None else session.out.surroundings.now() - asked.since
    call = calls.fault_list(
        asked.after, domain=asked.domain, fault_class=vars(asked)["class"], since=since, culprit_uid=asked.culprit,
        mine=asked.mine, newest_first=asked.last is not None, limit=min(asked.last or _PAGE, _PAGE),
    )  # fmt: skip
    if asked.last is None:
        yield from session.mpsd.pages(call)
    else:
        yield from reversed(list(islice(session.mpsd.pages(call), asked.last)))


def _columns(session: Session) -> Sequence[Column[values.Incident]]:
    names = _names(session)
    return (
        Column("NUM", lambda fault: fault.number, is_number=True),
        Column("WHEN", lambda fault: time.strftime("%m-%d %H:%M", time.localtime(fault.began_at))),
        Column("CLASS", lambda fault: fault.fault_class),
        Column("GPU", lambda fault: fault.gpu and names.gpus.get(fault.gpu, fault.gpu), may_be_cut=True, least=3),
        Column("DOMAIN", lambda fault: fault.domain, may_be_cut=True, least=6),
        Column("CULPRIT", lambda fault: incident.in_a_cell(fault, names), may_be_cut=True, least=12),
        Column("KNOWN", lambda fault: fault.confidence),
        Column("HURT", incident.hurt_in_a_cell, is_number=True),
        Column("STATE", lambda fault: "settled" if fault.is_settled else "open"),
    )


def show_fault(session: Session) -> int:
    found = session.ask(calls.fault_get(session.asked.number))
    if session.asked.html is not None:
        return _write_page(session, found)
    session.out.document(found, lambda: _report(session, found))
    return 0


def _write_page(session: Session, found: values.IncidentReport) -> int:
    """Write the fault's page to a file.  Raises OSError, which main() turns into a line on standard error."""
    path = session.asked.html
    with open(path, "w", encoding="utf-8") as file:
        file.write(render_page(found, _names(session)))
    session.out.document(found, lambda: f"fault {found.number} is in {path}")
    return 0


def _report(session: Session, found: values.IncidentReport) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    names, width = _names(session), min(session.out.surroundings.width, 120)
    parts: list[RenderableType] = [Text(f"Fault {found.number}", style="bold"), Text(incident.headline(found, names)), ""]
    parts.append(facts(incident.pairs(found, names)))
    drawn = lanes(found)
    parts += _section("When", [Text(line, no_wrap=True) for line in draw(drawn, width)] if drawn else [])
    seen = [(each.after_seconds, each.source, incident.seen(each)) for each in found.evidence]
    parts += _section("Seen", [_rows(seen)] if seen else [])
    parts += _section("Victims", [Text(line) for line in incident.hurt(found, names)])
    done = [(each.after_seconds, "", incident.done(each)) for each in found.deeds]
    parts += _section("Done by mpsd", [_rows(done)] if done else [])
    parts += _section("What you can do", [_rows_of_advice(incident.advice(found))])
    if found.left_out:
        parts += ["", f"{found.left_out} more entries had no room"]
    return Group(*parts)


def _section(title: str, parts: "Sequence[RenderableType]") -> "Sequence[RenderableType]":
    from rich.text import Text

    return ["", Text(title, style="bold"), *parts] if parts else []


def _rows(rows: Sequence[tuple[float, str, str]]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(justify="right", no_wrap=True)
    if any(source for _, source, _ in rows):
        made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for after, source, text in rows:
        cells = [incident.after(after), *([source] if source else []), text]
        made.add_row(*map(Text, cells))
    return made


def _rows_of_advice(lines: Sequence[str]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for line in lines:
        made.add_row("-", Text(line))
    return made


def list_blame(session: Session) -> int:
    found = session.all(calls.blame_list(limit=_PAGE))
    columns: Sequence[Column[values.Standing]] = (
        Column("KEY", lambda each: each.key, may_be_cut=True, least=16),
        Column("STANDING", lambda each: each.standing),
        Column("SINCE", lambda each: time.strftime("%m-%d %H:%M:%S", time.localtime(each.since))),
        Column("LEFT", lambda each: _left(session, each.until), is_number=True),
        Column("FAULTS", lambda each: each.faults, is_number=True),
        Column("CASE", lambda each: each.case, is_number=True),
        Column("GROUP", lambda each: each.group, is_number=True),
    )
    session.out.document(found, lambda: session.out.table(columns, found, "no client is in quarantine, suspected or paused"))
    return 0


def _left(session: Session, moment: float | None) -> str | None:
    seconds = session.until(moment)
    return None if seconds is None else show_duration(seconds)


def pardon(session: Session) -> int:
    done = session.ask(calls.blame_pardon(session.asked.key))
    said = f"{done.key} was {done.standing}; it is no longer"
    session.out.document(done, lambda: said)
    return 0


def _names(session: Session) -> Names:
    return Names(session.out.surroundings.user_name, words.ordinals(session.all(calls.device_list())))
