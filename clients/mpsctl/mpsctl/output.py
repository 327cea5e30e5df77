"""What was found, written: one JSON document, a JSON object a line, or text and tables for people.

Guards that standard output has the one or the other, never both; and that what a stranger named cannot move the cursor.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mpsctl.surroundings import Surroundings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

T = TypeVar("T")
_GAP = 2  # between columns
NOTHING = "-"  # in a cell without a value
STYLES = {  # of words that are states
    "fault": "bold red", "dead": "bold red", "silent": "red", "queued": "yellow", "waiting": "yellow", "starting": "cyan",
    "draining": "yellow", "recycling": "cyan", "stopping": "yellow", "active": "green", "ready": "green", "running": "green",
    "serving": "green", "promoting": "cyan", "warming": "cyan", "yielding": "yellow", "idle": "yellow", "fencing": "red",
    "faulted": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """may_be_cut: where the terminal is narrow, down to `least`; it ends in an ellipsis then."""

    title: str
    cell: Callable[[T], object]
    is_number: bool = False
    may_be_cut: bool = False
    least: int = 0


class Output:
    def __init__(self, surroundings: Surroundings, *, is_json: bool) -> None:
        self.surroundings, self.is_json = surroundings, is_json

    def table(self, columns: Sequence[Column[T]], rows: Iterable[T], empty: str) -> "RenderableType":
        """As wide as what it is written to."""
        return table(columns, rows, empty, self.surroundings.width)

    def document(self, value: Any, text: Callable[[], "RenderableType"]) -> None:
        """`text`: for people, made where it is needed."""
        if self.is_json:
            self.write(as_json(value, indent=2) + "\n")
        else:
            self.write(self.render(text()))

    def line(self, value: Any, text: Callable[[], "RenderableType"]) -> None:
        """One of a stream, which the reader sees at once."""
        self.write(as_json(value) + "\n" if self.is_json else self.render(text()))

    def write(self, text: str) -> None:
        self.surroundings.stdout.write(text)
        self.surroundings.stdout.flush()

    def render(self, what: "RenderableType") -> str:
        """Lines end where their words end: a table's padding is nobody's.  What is no table goes on as long as it is."""
        from rich.text import Text

        console = self.console(StringIO(), self.surroundings.width)
        console.print(what, soft_wrap=isinstance(what, str | Text))
        lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in lines)

    def console(self, file: Any, width: int | None = None) -> "Console":
        """width: None is the terminal's, as it is at any time."""
        from mpsctl.console import ShowingConsole

        surroundings = self.surroundings
        return ShowingConsole(
            file=file,
            width=width,
            force_terminal=surroundings.is_terminal,
            color_system="auto" if surroundings.has_colours else None,
            no_color=not surroundings.has_colours,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )


def plain(value: Any) -> Any:
    """Values as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def as_json(value: Any, indent: int | None = None) -> str:
    """The same values as json.dumps() has, with what is not printable as escapes: JSON may go to a terminal, too."""
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def table(columns: Sequence[Column[T]], rows: Iterable[T], empty: str, width: int) -> "RenderableType":
    """`empty`: the words for no rows.  Each row has one line of at most `width`, unless that is very narrow."""
    from rich.cells import cell_len
    from rich.table import Table

    cells = [[_words(column.cell(row)) for column in columns] for row in rows]
    if not cells:
        return empty
    naturals = [max(map(cell_len, each)) for each in zip([column.title for column in columns], *cells, strict=True)]
    leasts = [column.least if column.may_be_cut else None for column in columns]
    widths = fit(naturals, leasts, width - _GAP * (len(columns) - 1))
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, size in zip(columns, widths, strict=True):
        made.add_column(column.title, justify="right" if column.is_number else "left", width=size, no_wrap=True)
    for row in cells:
        made.add_row(*map(styled, row))
    return made


def fit(naturals: Sequence[int], leasts: Sequence[int | None], room: int) -> Sequence[int]:
    """Widths that fill no more than the room: the widest of those that may be cut (they have a least width) gives way first."""
    widths = list(naturals)
    while sum(widths) > room:
        able = [at for at, least in enumerate(leasts) if least is not None and widths[at] > least]
        if not able:
            break
        widths[max(able, key=lambda at: widths[at])] -= 1
    return widths


def facts(pairs: Mapping[str, object]) -> "RenderableType":
    """Names and values, a line each; what has no value is left out."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        if value not in (None, "", NOTHING):
            made.add_row(name, Text(visible(str(value)), style=STYLES.get(str(value), "")))
    return made


def styled(words: str) -> "Text":
    """One cell, of one line."""
    from rich.text import Text

    return Text(words, style=STYLES.get(words, ""), no_wrap=True, overflow="ellipsis")


def _words(value: object) -> str:
    return NOTHING if value is None or value == "" else visible(str(value))


def visible(text: str) -> str:
    """With what is not printable written out: it may come from a stranger's process."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
