"""The windows of `top` above its table: the detail of a row, the help, and the question before an action."""

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

if TYPE_CHECKING:
    from rich.console import RenderableType

MARGIN = 10  # columns of a window around its text, its scroll bar included
HELP = """\
1 to 9, Tab     a view; Shift+Tab: the one before
Up, Down, PgUp  a row                          Enter  all about it
/               show only rows with a text     f, n   go to the next row with a text
Esc             show all rows again
s, r            sort by the next column; the other way round
x p d h         stop a client, pardon a key, drain a domain, hand a service over: asks first
q, Ctrl-C       end

{legend}; a dash: not known
SM, clients     granted/asked share. NVML does not measure how busy each client of one server is
MEMORY          used/granted; used comes from NVML, as far as this user may ask it
leased          by the active leases that you may see"""


class Detail(ModalScreen[None]):
    """Shows a text until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "dismiss", "Close")]

    def __init__(self, title: str, text: "RenderableType") -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="detail") as box:
            box.border_title = self._title.replace("[", r"\[")
            yield Static(self._text, markup=False)
        yield Footer(show_command_palette=False)


class Question(ModalScreen[bool]):
    """Asks before an action: only `y` is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "dismiss(True)", "Yes"), ("n,escape,q", "dismiss(False)", "No")]

    def __init__(self, line: str, warning: str) -> None:
        super().__init__()
        self._line, self._warning = line, warning

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="question"):
            yield Static(f"Run this?\n\n    {self._line}\n\n{self._warning}\n\ny: yes   n: no", markup=False)
        yield Footer(show_command_palette=False)
