"""The screen of `top`: draw the frames of the feed, and turn keys into commands.

Nothing here waits for mpsd: the command of a key runs in a thread with its own connection.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from mpsd_client import Refused
from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static

from mpsctl.output import STYLES, Column, facts, fit, plain, visible
from mpsctl.session import NoMpsd, Session
from mpsctl.top import bars, dialogs, frame
from mpsctl.top.feed import LOST, Feed
from mpsctl.top.frame import Frame, Line
from mpsctl.top.usage import UsageReader
from mpsctl.top.views import VIEWS, Action, Asked, Shown, TopSession, View, command_line, prepare

INTERRUPTED = 130
_SILENT_SECONDS = 2.5  # after which the screen shows the age of its frame
_MOST_DRAWN = 300  # rows: drawing 1000 takes half a second
_GPU_LINES = 4  # one line of so many of the screen may be about a GPU
_ACTIONS = {view.action.key: view.action for view in VIEWS if view.action}


class Rows(DataTable[Text]):
    """The table of a view."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Why")]


class Top(App[Exception | None]):
    """Guards that the screen always shows the age of an old frame."""

    TITLE = "mpsctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head, #views, #note { height: auto; }
    #views, #note { color: $text-muted; }
    #find { display: none; border: none; height: 1; padding: 0; }
    #find.shown { display: block; }
    Rows { height: 1fr; scrollbar-size-vertical: 1; }
    #detail, #question { border: round $primary; margin: 1 2; padding: 0 1; height: auto; max-height: 90%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("slash", "find('filter')", "Filter", key_display="/"),
        Binding("f", "find('search')", "Find"),
        Binding("n", "next", show=False),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", show=False),
        Binding("escape", "all_rows", show=False),
        *(Binding(key, f"act('{key}')", each.verb.split()[-1].capitalize()) for key, each in _ACTIONS.items()),
        *(Binding(str(at + 1), f"turn({at})", show=False) for at in range(len(VIEWS))),
        Binding("tab", "turn_by(1)", show=False, priority=True),
        Binding("shift+tab", "turn_by(-1)", show=False, priority=True),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._usage = UsageReader()
        self._feed = Feed(session, self._bring, self._usage)
        self._view: View = VIEWS[0]
        self._frame: Frame | None = None
        self._bringing = threading.Lock()  # protects _brought, between the thread of the feed and this one
        self._brought: Frame | Exception | None = None
        self._lost: Exception | None = None
        self._came_at = time.monotonic()
        self._filter, self._search, self._is_search = "", "", False
        self._order: tuple[int, bool] | None = None
        self._drawn: tuple[Any, ...] = ()
        self._lines: list[Line] = []

    def compose(self) -> ComposeResult:
        yield Static("waiting for mpsd", id="head", markup=False)
        yield Static(id="views", markup=False)
        yield Rows(cursor_type="row", cell_padding=0)
        yield Input(id="find", placeholder="a text; Enter: keep it, Esc: show all rows")
        yield Static(id="note", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(Rows).focus()
        self._usage.start()
        self._feed.start()
        self.set_interval(1.0, self._draw_note)
        self._draw_views()

    def on_unmount(self) -> None:
        self._feed.close()
        self._usage.close()

    # -- frames ----------------------------------------------------------------------------------------------------------

    def _bring(self, what: Frame | Exception) -> None:
        """Hand over a frame, or an error; called in the thread of the feed.  One that is not drawn yet makes way for it."""
        if self._exit or not self._running:
            return
        with self._bringing:
            is_awaited, self._brought = self._brought is not None, what
        if not is_awaited:
            self.call_later(self._take)

    def _take(self) -> None:
        with self._bringing:
            what, self._brought = self._brought, None
        if isinstance(what, Exception):
            if self._frame is None and isinstance(what, NoMpsd):
                self.exit(what)  # only at the start is this an error
            self._lost = what
        elif what is not None:
            self._frame, self._lost, self._came_at = what, None, time.monotonic()
            self._draw()
        self._draw_note()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._frame is None or not self.query(Rows):
            return
        width = self.size.width
        shown = self._frame.gpus[: max(1, self.size.height // _GPU_LINES - 4)]
        self.query_one("#head", Static).update(
            "\n".join([frame.title(self._frame, width), *(frame.gpu_line(each, width) for each in shown)])
        )
        self._draw_views()
        if self._frame.view == self._view.name:
            self._draw_table(self._frame)

    def _draw_views(self) -> None:
        text = Text(no_wrap=True)
        for at, view in enumerate(VIEWS):
            text.append(f"{at + 1} {view.name}", style="bold reverse" if view is self._view else "")
            text.append(" ")
        self.query_one("#views", Static).update(text)

    def _draw_table(self, of: Frame) -> None:
        """Draw the rows in order: cell by cell if the same rows are there, else anew, with the cursor on the same row."""
        table = self.query_one(Rows)
        before, self._lines = self._lines, self._chosen(of)[:_MOST_DRAWN]
        titles = [self._title(at, column.title) for at, column in enumerate(of.columns)]
        naturals = [max(map(cell_len, each)) for each in zip(titles, *(line.cells for line in self._lines), strict=True)]
        leasts = [column.least if column.may_be_cut else None for column in of.columns]
        widths = fit(naturals, leasts, self.size.width - 2 - len(titles)) if titles else []
        drawn = (of.view, tuple(titles), tuple(widths), tuple(line.key for line in self._lines))
        if drawn == self._drawn:
            for y, (old, new) in enumerate(zip(before, self._lines, strict=True)):
                for x in (x for x, cell in enumerate(new.cells) if cell != old.cells[x]):
                    table.update_cell_at(Coordinate(y, x), _cell(new.cells[x], widths[x], of.columns[x]))
            return
        key, scroll = self._key(), table.scroll_y
        is_same = bool(self._drawn) and self._drawn[0] == of.view
        table.clear(columns=True)
        for title, width, column in zip(titles, widths, of.columns, strict=True):
            table.add_column(_cell(title, width, column), width=width + 1)
        for line in self._lines:
            table.add_row(*map(_cell, line.cells, widths, of.columns))
        self._drawn = drawn
        if is_same:
            at = next((y for y, line in enumerate(self._lines) if line.key == key), table.cursor_row)
            table.move_cursor(row=at, scroll=False)
            table.scroll_to(y=scroll, animate=False)

    def _chosen(self, of: Frame) -> list[Line]:
        """Return the rows that the filter leaves, in order."""
        found = [each for each in of.lines if bars.matches(each.cells, self._filter)]
        if self._order and self._order[0] < len(of.columns):
            at, is_down = self._order
            found.sort(key=lambda line: bars.order(line.cells[at]), reverse=is_down)
        return found

    def _title(self, at: int, title: str) -> str:
        if self._order is None or self._order[0] != at:
            return title
        return title + ("▼" if self._order[1] else "▲")

    def _draw_note(self) -> None:
        for note in self.query("#note").results(Static):  # none while the program ends, when the timer can still tick
            note.update(self._note())

    def _note(self) -> str:
        silent = time.monotonic() - self._came_at
        if self._lost is not None:
            return f"{visible(str(self._lost))}; trying again; the rows are {silent:.0f} s old"
        if silent > _SILENT_SECONDS:
            return f"mpsd has not answered for {silent:.0f} s"
        if self._frame is None:
            return ""
        parts = [f"only rows with “{self._filter}”"] if self._filter else []
        if len(self._lines) < len(self._frame.lines) and self._frame.view == self._view.name:
            parts.append(f"{len(self._lines)} of {len(self._frame.lines)} rows")
        if not self._frame.lines:
            parts.append(self._frame.empty)
        if self._frame.use.why and self._view.name in ("clients", "GPUs"):
            parts.append(f"memory used: {self._frame.use.why}")
        return visible("; ".join(parts))[: self.size.width]

    # -- keys ------------------------------------------------------------------------------------------------------------

    def _line(self) -> Line | None:
        at = self.query_one(Rows).cursor_row
        is_shown = self._frame is not None and self._frame.view == self._view.name
        return self._lines[at] if is_shown and 0 <= at < len(self._lines) else None

    def _key(self) -> object:
        at = self.query_one(Rows).cursor_row
        keys = self._drawn[3] if self._drawn else ()
        return keys[at] if 0 <= at < len(keys) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show a key only where its view has the action."""
        if action == "act":
            return self._view.action is not None and self._view.action.key == parameters[0]
        return True

    def action_turn(self, at: int) -> None:
        self._view, self._order = VIEWS[at], None
        self._filter = self._search = ""
        self._feed.turn_to(self._view)
        self._draw_views()
        self.refresh_bindings()
        self.query_one(Rows).focus()

    def action_turn_by(self, step: int) -> None:
        self.action_turn((VIEWS.index(self._view) + step) % len(VIEWS))

    def action_sort(self) -> None:
        count = len(self._frame.columns) if self._frame else 0
        at = 0 if self._order is None else self._order[0] + 1
        self._order = (at, False) if at < count else None
        self._draw()

    def action_reverse(self) -> None:
        if self._order is not None:
            self._order = self._order[0], not self._order[1]
            self._draw()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        is_same = self._order is not None and self._order[0] == event.column_index
        self._order = (event.column_index, is_same and not (self._order and self._order[1]))
        self._draw()

    def action_find(self, kind: str) -> None:
        self._is_search = kind == "search"
        found = self.query_one("#find", Input)
        found.value = self._search if self._is_search else self._filter
        found.add_class("shown").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if not self._is_search:
            self._filter = event.value
            self._draw()
            self._draw_note()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self._is_search:
            self._search = event.value
            self.action_next()
        self._leave_find()

    def action_next(self) -> None:
        """Move the cursor to the next row with the search text, from the top again after the last one."""
        table = self.query_one(Rows)
        order = [(table.cursor_row + 1 + step) % len(self._lines) for step in range(len(self._lines))]
        at = next((each for each in order if self._search and bars.matches(self._lines[each].cells, self._search)), None)
        if at is None:
            self.notify(f"no row has “{visible(self._search)}”", markup=False)
        else:
            table.move_cursor(row=at)

    def action_all_rows(self) -> None:
        self._filter = ""
        self._leave_find()
        self._draw()
        self._draw_note()

    def _leave_find(self) -> None:
        self.query_one("#find", Input).remove_class("shown")
        self.query_one(Rows).focus()

    def action_help(self) -> None:
        self.push_screen(dialogs.Detail("mpsctl top", dialogs.HELP.format(legend=bars.LEGEND)))

    def action_interrupt(self) -> None:
        self.exit(return_code=INTERRUPTED)

    # -- details and actions ---------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        self.action_detail()

    def action_detail(self) -> None:
        if (line := self._line()) is None:
            return
        if (detail := self._view.detail(line.row)) is None:
            found = {name.replace("_", " "): str(value) for name, value in plain(line.row).items()}
            self.push_screen(dialogs.Detail(f"{self._view.name}: {line.cells[0]}", facts(found)))
        else:
            self._run(*detail, self._show_detail)

    def _show_detail(self, title: str, text: str) -> None:
        self.push_screen(dialogs.Detail(title, Text.from_ansi(text)))

    def action_act(self, key: str) -> None:
        action, line = self._view.action, self._line()
        if action is None or line is None or self._frame is None:
            return
        asked = action.asked(line.row)
        if asked is None:
            self.notify("no key is known for this fault", markup=False)
        elif not action.may(line.row, self._frame.hello):
            self.notify(f"you may not: {command_line(action.verb, asked)} is for the owner or an operator", markup=False)
        else:
            self.push_screen(dialogs.Question(command_line(action.verb, asked), action.warning), self._answered(action, asked))

    def _answered(self, action: Action, asked: Asked) -> Callable[[bool | None], None]:
        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self._run(action.verb, asked, self._show_done)

        return answered

    def _show_done(self, title: str, text: str) -> None:
        if "\n" in text:
            self._show_detail(title, text)
        else:
            self.notify(Text.from_ansi(text).plain, markup=False)
        self._feed.refresh()

    @work(thread=True)
    def _run(self, verb: str, asked: Asked, show: Callable[[str, str], None]) -> None:
        """Run a command on its own connection, and show its text."""
        command, arguments = prepare(verb, asked)
        shown = Shown(self._session.out.surroundings, self.size.width - dialogs.MARGIN)
        try:
            with TopSession(arguments, shown, self._connect) as session:
                command.run(session)
        except Refused as exc:
            self.call_from_thread(self._complain, exc.message)
        except (*LOST, OSError) as exc:
            self.call_from_thread(self._complain, str(exc))
        else:
            self.call_from_thread(show, command_line(verb, asked), shown.text)

    def _connect(self, _: str | None) -> Any:
        return self._session.connect(getattr(self._session.asked, "socket", None))

    def _complain(self, why: str) -> None:
        self.notify(visible(why), severity="error", markup=False)


def _cell(cell: str, width: int, column: Column[Any]) -> Text:
    """Return the text of a cell, and the gap after it."""
    text = Text(" " * (width - cell_len(cell)) + cell if column.is_number else cell, style=STYLES.get(cell, ""), no_wrap=True)
    text.truncate(width, overflow="ellipsis")
    return text


def run(session: Session) -> int:
    """Show the screen until the user ends it.  Raises NoMpsd if no mpsd runs at the start."""
    for name in ("LINES", "COLUMNS"):  # Textual takes them for the size, and a program with readline exports an old one
        os.environ.pop(name, None)
    app = Top(session)
    lost = app.run()
    if lost is not None:
        raise lost
    return app.return_code or 0
