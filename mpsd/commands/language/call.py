"""One command's exchange: the caller, the request, and the answer."""

from typing import Generic, TypeVar

from msgspec import Struct

from mpsd.commands.language.board import Board
from mpsd.commands.language.grammar import LineRequest
from mpsd.model.domain import ServerView

R = TypeVar("R", bound=LineRequest)


class Answer(Struct, frozen=True):
    """The answer, which the front end prints unchanged; `status` is the front end's exit status."""

    stdout: str = ""
    status: int = 0
    stderr: str = ""


class CommandCall(Struct, Generic[R], frozen=True):
    """A request on its way to its handler; `server` is the server that it names, already found."""

    board: Board
    request: R
    server: ServerView | None = None

    @property
    def named_server(self) -> ServerView:
        """The server, for handlers whose grammar always names one, which dispatch() has then found."""
        if self.server is None:
            raise TypeError(f"{self.request} names no server")
        return self.server
