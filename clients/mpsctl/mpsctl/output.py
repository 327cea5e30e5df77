"""Write the results of a command: as one JSON document, as JSON lines, or as text and tables for people.

Standard output has either JSON or text, never both.  Unprintable characters in names are escaped, so that a foreign process
cannot control the terminal.
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
STYLES = {  # colours of states
    "fault": "bold red", "dead": "bold red", "silent": "red", "queued": "yellow", "waiting": "yellow", "starting": "cyan",
    "draining": "yellow", "recycling": "cyan", "stopping": "yellow", "active": "green", "ready": "green", "running": "green",
    "serving": "green", "promoting": "cyan", "warming": "cyan", "yielding": "yellow", "idle": "yellow", "fencing": "red",
    "contained": "yellow",
    "faulted": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table.  may_be_cut: in a narrow terminal it is cut, down to `least` columns, and ends in an ellipsis."""

    title: str
    cell: Callable[[T], object]
    is_number: bool = False
    may_be_cut: bool = False
    least: int = 0


class Output:
    def __init__(self, surroundings: Surroundings, *, is_json: bool) -> None:
        self.surroundings, self.is_json = surroundings, is_json

    def table(self, columns: Sequence[Column[T]], rows: Iterable[T], empty: str) -> "RenderableType":
        """Return a table as wide as the output."""
        return table(columns, rows, empty, self.surroundings.width)

    def document(self, value: Any, text: Callable[[], "RenderableType"]) -> None:
        """Write one result.  text: makes the form for people; called only without --json."""
        if self.is_json:
            self.write(as_json(value, indent=2) + "\n")
        else:
            self.write(self.render(text()))

    def line(self, value: Any, text: Callable[[], "RenderableType"]) -> None:
        """Write one item of a stream, and flush it."""
        self.write(as_json(value) + "\n" if self.is_json else self.render(text()))

    def write(self, text: str) -> None:
        self.surroundings.stdout.write(text)
        self.surroundings.stdout.flush()

    def render(self, what: "RenderableType") -> str:
        """Render to text without trailing spaces.  Strings and Text are not wrapped."""
        from rich.text import Text

        console = self.console(StringIO(), self.surroundings.width)
        console.print(what, soft_wrap=isinstance(what, str | Text))
        lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in lines)

    def console(self, file: Any, width: int | None = None) -> "Console":
        """Return a console that writes to the file.  width: None: the current width of the terminal."""
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
    """Convert dataclasses, mappings and iterables to JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON with unprintable characters escaped, since JSON may go to a terminal, too."""
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def table(columns: Sequence[Column[T]], rows: Iterable[T], empty: str, width: int) -> "RenderableType":
    """Return a table; each row is one line of at most `width` columns if the columns can be cut that far.  empty: the text for
    no rows."""
    from rich.cells import cell_len
    from rich.table import Table

    cells = [[cell_text(column.cell(row)) for column in columns] for row in rows]
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
    """Return column widths whose sum is at most `room`, if the least widths allow that.  The widest column that may be cut (one
    with a least width) shrinks first."""
    widths = list(naturals)
    while sum(widths) > room:
        able = [at for at, least in enumerate(leasts) if least is not None and widths[at] > least]
        if not able:
            break
        widths[max(able, key=lambda at: widths[at])] -= 1
    return widths


def facts(pairs: Mapping[str, object]) -> "RenderableType":
    """Return a table of names and values, one pair per line, without the pairs that have no value."""
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
    """Return the text of a cell on one line, coloured if it is a state."""
    from rich.text import Text

    return Text(words, style=STYLES.get(words, ""), no_wrap=True, overflow="ellipsis")


def cell_text(value: object) -> str:
    """Return the text of a cell, with unprintable characters escaped."""
    return NOTHING if value is None or value == "" else visible(str(value))


def visible(text: str) -> str:
    """Escape unprintable characters, since the text may come from a foreign process."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
