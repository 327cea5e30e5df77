"""One command's exchange: the caller, the request, and the answer."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from mpsd.legacy.board import Board, ServerView
from mpsd.legacy.grammar import Request

ROOT_UID = 0

R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True)
class Caller:
    """The user behind a command, from the kernel, and the user this daemon runs as."""

    uid: int
    daemon_uid: int
    is_admin: bool = False  # a member of the configured admin group
    is_inside: bool = True  # in mpsd's own pid namespace, or trusted nevertheless: not a container's root

    @property
    def is_owner(self) -> bool:
        return self.is_inside and (self.is_admin or self.uid in (ROOT_UID, self.daemon_uid))


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer, which the front end prints unchanged; `status` is the front end's exit status."""

    stdout: str = ""
    status: int = 0
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Ask(Generic[R]):
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
