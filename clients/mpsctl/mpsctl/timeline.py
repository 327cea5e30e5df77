"""When who saw what, and when what was done: a line for each source, and one for mpsd.  Pure.

    0 ms                              410 ms        # proof  o seen  x clears  ! done
    uvm_events  #
    kernel_log  |-----------o                       the bar: so long it knew nothing
    mpsd        !                          !
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpsd_client import values

from mpsctl.incident import milliseconds, seen
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


def draw(of: Sequence[Lane], width: int) -> Sequence[str]:
    """Lines of at most `width`, unless that is very narrow."""
    title = max((len(lane.name) for lane in of), default=0) + 2
    columns = max(_LEAST_COLUMNS, width - title)
    first, last = span(of)
    begin, end = milliseconds(first), milliseconds(last)
    head = f"{'':{title}}{begin}{end:>{columns - len(begin)}}"
    return [head, *(f"{lane.name:<{title}}{_row(lane, first, last, columns)}".rstrip() for lane in of), "", LEGEND]


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
    return round((moment - first) / (last - first) * (columns - 1)) if last > first else 0
