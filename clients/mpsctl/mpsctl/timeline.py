"""Draw the timeline of a fault: a row of observations for each source, and a row of mpsd's actions.  Pure.

                0     1 ms    10 ms   100 ms   1 s       # proof  o seen  x clears  ! done
    uvm_events  #
    kernel_log  |----------------------o                 the bar: the time before its first observation
    mpsd             !                           !

The scale is logarithmic: a proof comes after fractions of a millisecond, an Xid after a tenth of a second, the end after
seconds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpsd_client import values

from mpsctl.incident import seen
from mpsctl.output import visible

SIGNS = {"proof": "#", "seen": "o", "clears": "x", "done": "!"}  # of two marks in one place the one listed first is drawn
LEGEND = "  ".join(f"{sign} {kind}" for kind, sign in SIGNS.items())
DOER = "mpsd"
_LEAST_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark on the timeline.  kind: a key of SIGNS.  words: its description."""

    after_seconds: float
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    marks: tuple[Mark, ...]


def lanes(of: values.IncidentReport) -> Sequence[Lane]:
    """Return one lane per source, in the order of their first observations; mpsd's lane is the last."""
    by_source: dict[str, list[Mark]] = {}
    for each in sorted(of.evidence, key=lambda each: each.after_seconds):
        kind = "proof" if each.is_proof else "clears" if each.clears else "seen"
        by_source.setdefault(each.source, []).append(Mark(each.after_seconds, kind, seen(each)))
    done = [Mark(each.after_seconds, "done", visible(each.text)) for each in of.deeds]
    made = [Lane(name, tuple(marks)) for name, marks in by_source.items()]
    return [*made, Lane(DOER, tuple(done))] if done else made


def span(of: Iterable[Lane]) -> tuple[float, float]:
    """Return the earliest and the latest moment of all marks, in seconds; the earliest is 0, the first sign, or before it."""
    moments = [mark.after_seconds for lane in of for mark in lane.marks]
    return min(0.0, *moments) if moments else 0.0, max(0.0, *moments) if moments else 0.0


def position(moment: float, first: float, last: float) -> float:
    """Return the place of a moment in the picture, from 0 (first) to 1 (last)."""
    begin, end = _scaled(first), _scaled(last)
    return (_scaled(moment) - begin) / (end - begin) if end > begin else 0.0


def ticks(first: float, last: float) -> Sequence[float]:
    """Return the labelled moments of the axis: 0, decades of a millisecond, and both ends."""
    decades = [sign * 10.0**power for power in range(-3, 6) for sign in (-1, 1)]
    return sorted({first, 0.0, last, *(moment for moment in decades if first < moment < last)})


def clock(moment: float) -> str:
    """Return the label of a moment on the axis."""
    return f"{moment * 1000:.3g} ms" if abs(moment) < 1 else f"{moment:.3g} s"


def _scaled(moment: float) -> float:
    """Scale a moment: about linear around 0, logarithmic from a millisecond on."""
    return math.copysign(math.log10(1 + abs(moment) * 1000), moment)


def draw(of: Sequence[Lane], width: int) -> Sequence[str]:
    """Return the picture as lines of at most `width` columns, unless that is very narrow."""
    title = max((len(lane.name) for lane in of), default=0) + 2
    columns = max(_LEAST_COLUMNS, width - title)
    first, last = span(of)
    rows = (f"{lane.name:<{title}}{_row(lane, first, last, columns)}".rstrip() for lane in of)
    return [f"{'':{title}}{_axis(first, last, columns)}", *rows, "", LEGEND]


def _axis(first: float, last: float, columns: int) -> str:
    """Draw the labels of both ends, and of the moments between them as many as fit."""
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
