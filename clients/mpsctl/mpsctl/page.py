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

# Sizes in the picture, in its own units.
_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _SIZE, _NAME = 900, 130, 40, 30, 34, 6, 50

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --quiet: #667085; --line: #d5dae3; --ground: #ffffff; --bar: #c3cad6;
  --proof: #c62828; --seen: #1565c0; --clears: #2e7d32; --done: #8e5200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --quiet: #98a2b3; --line: #39414f; --ground: #14181f;
  --bar: #465063; --proof: #ff7b72; --seen: #79b8ff; --clears: #7ee787; --done: #f0b35e; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.headline { font-size: 1.15rem; border-left: 4px solid var(--proof); padding-left: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td.time { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
footer, .legend { color: var(--quiet); font-size: .85rem; } footer { margin-top: 3rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .tick { fill: var(--quiet); text-anchor: middle; font-size: 11px; } svg .grid { stroke: var(--line); }
svg .bar { stroke: var(--bar); stroke-width: 4; }
.proof { fill: var(--proof); } .seen { fill: var(--seen); } .clears { fill: var(--clears); } .done { fill: var(--done); }
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
    """Draw a row for each source: a bar until its first observation, and a sign for each observation."""
    height = _TOP + _LANE * len(of) + 10
    first, last = span(of)
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="when each source saw it">'
    yield from _axis(first, last, height)
    for row, lane in enumerate(of):
        middle = _TOP + _LANE * row + _LANE // 2
        yield f'<text x="0" y="{middle + 4}">{_text(lane.name)}</text>'
        begin, known = _x(0.0, first, last), min(_x(mark.after_seconds, first, last) for mark in lane.marks)
        if lane.name != DOER and known > begin:
            yield f'<line class="bar" x1="{begin}" y1="{middle}" x2="{known}" y2="{middle}"/>'
        yield from (_sign(mark, _x(mark.after_seconds, first, last), middle) for mark in lane.marks)
    yield "</svg>"
    signs = (f'<svg viewBox="0 0 14 14" style="width:.9em">{_shape(kind, 7, 7)}</svg> {words}' for kind, words in _LEGEND)
    yield f'<p class="legend">{" &nbsp; ".join(signs)}</p>'


def _axis(first: float, last: float, height: int) -> Iterator[str]:
    named = -math.inf
    for moment in ticks(first, last):
        x = _x(moment, first, last)
        yield f'<line class="grid" x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{height}"/>'
        if x - named >= _NAME:  # names must not overlap
            yield f'<text class="tick" x="{x}" y="{_TOP - 14}">{clock(moment)}</text>'
            named = x


def _x(moment: float, first: float, last: float) -> float:
    return round(_LEFT + position(moment, first, last) * (_WIDTH - _LEFT - _RIGHT), 1)


def _sign(mark: Mark, x: float, y: float) -> str:
    return f"<g><title>{after(mark.after_seconds)} {_text(mark.words)}</title>{_shape(mark.kind, x, y)}</g>"


def _shape(kind: str, x: float, y: float) -> str:
    """Draw a diamond for proof, a circle for an observation, a square that clears, a triangle for an action."""
    s = _SIZE
    corners = {
        "proof": f"{x},{y - s} {x + s},{y} {x},{y + s} {x - s},{y}",
        "clears": f"{x - s},{y - s} {x + s},{y - s} {x + s},{y + s} {x - s},{y + s}",
        "done": f"{x},{y - s} {x + s},{y + s} {x - s},{y + s}",
    }
    if kind in corners:
        return f'<polygon class="{kind}" points="{corners[kind]}"/>'
    return f'<circle class="seen" cx="{x}" cy="{y}" r="{s}"/>'
