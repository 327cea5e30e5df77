"""Bars, sparklines and the order of cells for `top`.  Pure.

A bar needs no colour: each kind of share has another character.
"""

from collections.abc import Iterable, Sequence

from mpsctl.quantities import Unfit, parse_duration, parse_size

USED, GRANTED, ASKED, REST = "█", "▒", "░", "·"
LEGEND = f"{USED} used  {GRANTED} granted  {ASKED} asked"
_SPARKS = "▁▂▃▄▅▆▇█"


def bar(width: int, used: float | None, granted: float | None, asked: float | None = None) -> str:
    """Return a bar of shares from 0 to 1; a share that is larger than an earlier one continues where that one ends."""
    cells = [REST] * width
    for share, character in ((asked, ASKED), (granted, GRANTED), (used, USED)):
        count = _cells(share, width)
        cells[:count] = character * count
    return "".join(cells)


def _cells(share: float | None, width: int) -> int:
    """Return the number of cells for a share: at least one for any share above 0."""
    if not share or share < 0:
        return 0
    return min(width, max(1, round(share * width)))


def spark(values: Sequence[float | None], most: float, width: int) -> str:
    """Return the last values as a line of blocks; `most` is a full block, None a blank."""
    top = len(_SPARKS) - 1
    shown = [" " if v is None else _SPARKS[min(top, max(0, round(v / most * top)))] if most else _SPARKS[0] for v in values]
    return "".join(shown[-width:]).rjust(width)


def order(cell: str) -> tuple[int, float, str]:
    """Return a sort key for a cell: numbers, sizes, shares and durations by their value, before words; blanks last."""
    word = cell.split(" ")[-1] if cell[:1] in (USED, GRANTED, ASKED, REST) else cell.split(" ")[0]
    word = word.split("/")[0]
    if word in ("-", ""):
        return (2, 0.0, "")
    for parse in (_number, parse_size, parse_duration):
        try:
            return (0, float(parse(word)), "")
        except (Unfit, ValueError):
            continue
    return (1, 0.0, cell.casefold())


def _number(word: str) -> float:
    return float(word.rstrip("%"))


def matches(cells: Iterable[str], text: str) -> bool:
    return any(text.casefold() in cell.casefold() for cell in cells)
