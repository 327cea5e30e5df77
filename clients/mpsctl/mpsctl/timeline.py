"""When who saw what, and when what was done: a line for each source, and one for mpsd.  Pure.

                0     1 ms    10 ms   100 ms   1 s       # proof  o seen  x clears  ! done
    uvm_events  #
    kernel_log  |----------------------o                 the bar: so long it knew nothing
    mpsd             !                           !

The scale is logarithmic: a proof comes after fractions of a millisecond, an Xid after a tenth of a second, the end after many.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpsd_client import values

from mpsctl.incident import seen
from mpsctl.output import visible

SIGNS = {"proof": "#", "seen": "o", "clears": "x", "done": "!"}  # the first of two in one place is drawn
LEGEND = "  ".join(f"{sign} {kind}" for kind, sign in SIGNS.items())
DOER = "mpsd"
_LEAST_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """kind: of SIGNS.  words: what it stands for."""

    after_seconds: float
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    marks: tuple[Mark, ...]


def lanes(of: values.IncidentReport) -> Sequence[Lane]:
    """Who knew first comes first; mpsd last."""
    by_source: dict[str, list[Mark]] = {}
    for each in sorted(of.evidence, key=lambda each: each.after_seconds):
        kind = "proof" if each.is_proof else "clears" if each.clears else "seen"
        by_source.setdefault(each.source, []).append(Mark(each.after_seconds, kind, seen(each)))
    done = [Mark(each.after_seconds, "done", visible(each.text)) for each in of.deeds]
    made = [Lane(name, tuple(marks)) for name, marks in by_source.items()]
    return [*made, Lane(DOER, tuple(done))] if done else made


def span(of: Iterable[Lane]) -> tuple[float, float]:
    """From the first sign, or what was before it, to the last."""
    moments = [mark.after_seconds for lane in of for mark in lane.marks]
    return min(0.0, *moments) if moments else 0.0, max(0.0, *moments) if moments else 0.0


def position(moment: float, first: float, last: float) -> float:
    """Of a moment of a span in its picture, from 0 to 1."""
    begin, end = _scaled(first), _scaled(last)
    return (_scaled(moment) - begin) / (end - begin) if end > begin else 0.0


def ticks(first: float, last: float) -> Sequence[float]:
    """The moments that the axis names: nought, powers of ten of a millisecond, and both ends where they are no such thing."""
    decades = [sign * 10.0**power for power in range(-3, 6) for sign in (-1, 1)]
    return sorted({first, 0.0, last, *(moment for moment in decades if first < moment < last)})


def clock(moment: float) -> str:
    """At the axis."""
    return f"{moment * 1000:.3g} ms" if abs(moment) < 1 else f"{moment:.3g} s"


def _scaled(moment: float) -> float:
    """Linear around nought, logarithmic from a millisecond on."""
    return math.copysign(math.log10(1 + abs(moment) * 1000), moment)


def draw(of: Sequence[Lane], width: int) -> Sequence[str]:
    """Lines of at most `width`, unless that is very narrow."""
    title = max((len(lane.name) for lane in of), default=0) + 2
    columns = max(_LEAST_COLUMNS, width - title)
    first, last = span(of)
    rows = (f"{lane.name:<{title}}{_row(lane, first, last, columns)}".rstrip() for lane in of)
    return [f"{'':{title}}{_axis(first, last, columns)}", *rows, "", LEGEND]


def _axis(first: float, last: float, columns: int) -> str:
    """Both ends, and of what lies between them what there is room for."""
    cells = [" "] * columns
    marks = ticks(first, last)
    for moment in dict.fromkeys((marks[0], marks[-1], *marks)):
        words = clock(moment)
        place = min(_column(moment, first, last, columns), columns - len(words))
        if set(cells[max(0, place - 1) : place + len(words) + 1]) == {" "}:
            cells[place : place + len(words)] = words
    return "".join(cells).rstrip()


def _row(lane: Lane, first: float, last: float, columns: int) -> str:
    cells = [" "] * columns
    places = [(_column(mark.after_seconds, first, last, columns), mark.kind) for mark in lane.marks]
    begin, known = _column(0.0, first, last, columns), min(place for place, _ in places)
    if lane.name != DOER and known > begin:
        cells[begin:known] = ["|", *"-" * (known - begin - 1)]
    for place, kind in sorted(places, key=lambda each: list(SIGNS).index(each[1]), reverse=True):
        cells[place] = SIGNS[kind]
    return "".join(cells)


def _column(moment: float, first: float, last: float, columns: int) -> int:
    return round(position(moment, first, last) * (columns - 1))
