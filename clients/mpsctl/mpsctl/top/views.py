"""The views of `top`: each is the list of a command, with the command that shows one entry and those that act on it.

So a view has the columns of its command, a detail its text, and an action its checks; `top` adds only bars to clients and GPUs.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from mpsd_client import Call, Page, values

from mpsctl.arguments import Command
from mpsctl.output import Column, Output, visible
from mpsctl.session import Session
from mpsctl.surroundings import Surroundings
from mpsctl.top.clients import Row

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
MOST_ROWS = 1000  # of a view: a person reads no more, and each page costs mpsd time
Asked = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """A command on one row.  asked: its arguments; None where it does not apply.  may: whether this user may do it."""

    key: str
    verb: str
    asked: Callable[[Any], Asked | None]
    may: Callable[[Any, values.Hello], bool]
    warning: str


@dataclass(frozen=True, slots=True)
class View:
    """verb: the command that lists it; empty: `top` makes it.  key: identifies a row from one refresh to the next."""

    name: str
    key: Callable[[Any], object]
    detail: Callable[[Any], tuple[str, Asked] | None]
    verb: str = ""
    asked: Asked | None = None
    action: Action | None = None


def _is_operator(row: Any, hello: values.Hello) -> bool:
    return hello.is_operator


def _is_own(row: Any, hello: values.Hello) -> bool:
    return hello.is_operator or hello.uid == (row.uid if isinstance(row, Row) else row.owner_uid)


def _full_name(row: Any) -> str:
    """Return a name that means this user's arena, for any caller."""
    return row.name if ":" in row.name else f"{row.owner_uid}:{row.name}"


def _pardon(key: Callable[[Any], str | None]) -> Action:
    def asked(row: Any) -> Asked | None:
        return {"key": key(row)} if key(row) else None

    return Action("p", "pardon", asked, _is_operator, "From its next start it is placed like any other.")


def _client_of(pid: int | None) -> tuple[str, Asked] | None:
    return None if pid is None else ("why", {"pid": pid})


VIEWS: Sequence[View] = (
    View("clients", lambda row: (row.pid, row.start_time), lambda row: _client_of(row.pid), action=Action(
        "x", "stop", lambda row: {"pid": row.pid, "start_time": row.start_time}, _is_own,
        "Its GPU work is ended first, so that its co-runners are not harmed; then the process is killed.")),
    View("domains", lambda row: row.name, lambda row: None, "domains", action=Action(
        "d", "domain drain", lambda row: {"name": row.name}, _is_operator,
        "It takes no new clients, and ends when its last client has ended.")),
    View("leases", lambda row: row.id, lambda row: ("lease show", {"id": row.id}), "leases"),
    View("queue", lambda row: (row.lease_id, row.pid), lambda row: _client_of(row.pid), "queue"),
    View("services", lambda row: row.id, lambda row: ("service show", {"name": _full_name(row)}), "services", action=Action(
        "h", "service handover", lambda row: {"name": _full_name(row)}, _is_own,
        "The next ready standby serves; the active becomes a standby.")),
    View("arenas", lambda row: row.id, lambda row: ("arena show", {"name": _full_name(row)}), "arenas"),
    View("faults", lambda row: row.number, lambda row: ("fault", {"number": row.number}), "faults", {"last": 200},
         _pardon(lambda row: row.culprit_key)),
    View("blame", lambda row: row.key, lambda row: None, "blame", action=_pardon(lambda row: row.key)),
    View("GPUs", lambda row: row.uuid, lambda row: None),
)  # fmt: skip


class Listed(Output):
    """Keeps the table of a command instead of writing it."""

    columns: Sequence[Column[Any]] = ()
    rows: Sequence[Any] = ()
    empty: str = ""

    def document(self, value: Any, text: "Callable[[], RenderableType]") -> None:
        text()

    def table(self, columns: Sequence[Column[Any]], rows: Iterable[Any], empty: str) -> "RenderableType":
        self.columns, self.rows, self.empty = columns, tuple(rows), empty
        return ""


class Shown(Output):
    """Keeps the text of a command instead of writing it, `columns` wide; colours are the only codes for a terminal in it."""

    def __init__(self, surroundings: Surroundings, columns: int) -> None:
        super().__init__(replace(surroundings, environ={**surroundings.environ, "COLUMNS": str(columns)}), is_json=False)
        self.text = ""

    def document(self, value: Any, text: "Callable[[], RenderableType]") -> None:
        self.text = self.render(text()).rstrip()


class TopSession(Session):
    """Asks for the first entries of each list only, and writes nothing on the terminal while it waits."""

    def ask(self, call: Call[T]) -> T:
        return self.mpsd.ask(call)

    def all(self, call: Call[Page[T]]) -> list[T]:
        return list(islice(self.mpsd.pages(call), MOST_ROWS))


def prepare(verb: str, asked: Asked | None) -> tuple[Command, Namespace]:
    """Return a command, and its arguments as its parser gives them; those that are not asked have their default."""
    from mpsctl.table import COMMANDS  # which imports this package

    command = next(each for each in COMMANDS if each.words == verb)
    names = {each.name.lstrip("-").replace("-", "_"): False if each.is_flag else each.default for each in command.arguments}
    return command, Namespace(**names | dict(asked or {}))


def command_line(verb: str, asked: Asked) -> str:
    """Return the command as a person would type it."""
    command, _ = prepare(verb, None)
    options = {each.name.lstrip("-").replace("-", "_"): each for each in command.arguments}
    parts = [f"{options[name].name} {value}" if options[name].is_option else str(value) for name, value in asked.items()]
    return visible(" ".join(["mpsctl", verb, *parts]))
