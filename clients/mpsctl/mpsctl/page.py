"""Render a fault as one HTML page, with inline style and picture, without scripts or external resources.

One function, `_text`, escapes all values that users choose.  The page follows the reader's light or dark mode.
"""

import html
import math
from collections.abc import Iterable, Iterator, Sequence

from mpsd_client import values

from mpsctl import __version__, incident
from mpsctl.incident import Names, after
from mpsctl.output import visible
from mpsctl.timeline import DOER, Lane, Mark, clock, lanes, position, span, ticks

_NAME_PERCENT = 22  # of the width of a phone, for the name of a moment
_SIGNS = {"proof": "◆", "seen": "●", "clears": "■", "done": "▲"}

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --quiet: #667085; --line: #d5dae3; --ground: #ffffff; --bar: #c3cad6;
  --proof: #c62828; --seen: #1565c0; --clears: #2e7d32; --done: #8e5200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --quiet: #98a2b3; --line: #39414f; --ground: #14181f;
  --bar: #465063; --proof: #ff7b72; --seen: #79b8ff; --clears: #7ee787; --done: #f0b35e; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.headline { font-size: 1.15rem; border-left: 4px solid var(--proof); padding-left: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td.time { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
footer, .legend { color: var(--quiet); font-size: .85rem; } footer { margin-top: 3rem; }
.picture { margin: 0 1.2rem 0 .6rem; } .track { position: relative; height: 1.6rem; border-bottom: 2px solid var(--line); }
.track > * { position: absolute; bottom: 0; transform: translateX(-50%); line-height: 1.3; }
.track > i { transform: none; height: .35rem; background: var(--bar); }
.axis { border: 0; color: var(--quiet); font-size: .8rem; } .axis > * { white-space: nowrap; }
@media (max-width: 40rem) { table, tbody, tr, td, th { display: block; } td, th { border: 0; padding: 0; }
  td.time { text-align: left; } tr { border-bottom: 1px solid var(--line); padding: .3rem 0; } }
.proof { color: var(--proof); } .seen { color: var(--seen); } .clears { color: var(--clears); } .done { color: var(--done); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LEGEND = (("proof", "proof of the culprit"), ("seen", "observation"), ("clears", "clears a client"), ("done", "done by mpsd"))


def render_page(of: values.IncidentReport, names: Names) -> str:
    return "\n".join(_page(of, names)) + "\n"


def _page(of: values.IncidentReport, names: Names) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Fault {of.number}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Fault {of.number}</h1>"
    yield f'<p class="headline">{_text(incident.headline(of, names))}</p>'
    yield from _table([(_head(name), _cell(value)) for name, value in incident.pairs(of, names).items() if value])
    if drawn := lanes(of):
        yield "<h2>When</h2>"
        yield from _picture(drawn)
    seen = [(_time(each.after_seconds), _cell(each.source), _cell(incident.seen(each))) for each in of.evidence]
    yield from _section("Seen", _table(seen))
    yield from _section("Victims", _list(incident.hurt(of, names)))
    yield from _section("Done by mpsd", _table([(_time(each.after_seconds), _cell(incident.done(each))) for each in of.deeds]))
    yield from _section("What you can do", _list(incident.advice(of)))
    if of.left_out:
        yield f"<p>{of.left_out} more entries had no room.</p>"
    yield f"<footer>mpsctl {__version__}; times after the first sign of the fault. docs/faults.md has the words.</footer>"
    yield "</body>\n</html>"


def _text(words: str) -> str:
    """Escape any value as text, for the page and for an attribute."""
    return html.escape(visible(words), quote=True)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    shown = list(lines)
    if shown:
        yield f"<h2>{title}</h2>"
        yield from shown


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield "<table>"
        yield from (f"<tr>{''.join(row)}</tr>" for row in rows)
        yield "</table>"


def _list(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "<ul>"
        yield from (f"<li>{_text(line)}</li>" for line in lines)
        yield "</ul>"


def _head(words: str) -> str:
    return f"<th>{_text(words)}</th>"


def _cell(words: str) -> str:
    return f"<td>{_text(words)}</td>"


def _time(seconds: float) -> str:
    return f'<td class="time">{after(seconds)}</td>'


# -- the picture ---------------------------------------------------------------------------------------------------------


def _picture(of: Sequence[Lane]) -> Iterator[str]:
    """Draw a track for each source below its name: a bar until its first observation, and a sign for each observation."""
    first, last = span(of)
    yield '<div class="picture" role="img" aria-label="when each source saw it; the table below has the times">'
    yield f'<div class="track axis">{"".join(_ticks(first, last))}</div>'
    for lane in of:
        begin, known = _x(0.0, first, last), min(_x(mark.after_seconds, first, last) for mark in lane.marks)
        has_bar = lane.name != DOER and known > begin
        bar = f'<i style="left:{begin}%;width:{round(known - begin, 1)}%"></i>' if has_bar else ""
        signs = "".join(_sign(mark, _x(mark.after_seconds, first, last)) for mark in lane.marks)
        yield f'<div>{_text(lane.name)}</div><div class="track">{bar}{signs}</div>'
    yield "</div>"
    words = (f'<b class="{kind}">{_SIGNS[kind]}</b> {words}' for kind, words in _LEGEND)
    yield f'<p class="legend">{" &nbsp; ".join(words)}</p>'


def _ticks(first: float, last: float) -> Iterator[str]:
    """Name the moments of the axis, as far as the names do not overlap on a phone."""
    named = -math.inf
    for moment in ticks(first, last):
        x = _x(moment, first, last)
        if x - named >= _NAME_PERCENT:
            yield f'<span style="left:{x}%">{clock(moment)}</span>'
            named = x


def _x(moment: float, first: float, last: float) -> float:
    """Return the place of a moment, in percent of the width."""
    return round(100 * position(moment, first, last), 1)


def _sign(mark: Mark, x: float) -> str:
    words = f"{after(mark.after_seconds)} {_text(mark.words)}"
    return f'<b class="{mark.kind}" style="left:{x}%" title="{words}">{_SIGNS[mark.kind]}</b>'
