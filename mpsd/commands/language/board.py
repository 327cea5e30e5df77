"""The interface that commands act on: the view of the running daemon that this layer needs.

The daemon implements `Board`; tests implement it in memory.  Only types live here.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from mpsd.errors import MpsdError
from mpsd.model.device import Device
from mpsd.model.domain import Defaults, ServerView


class Board(Protocol):
    """The daemon, for one command.  Every method may raise MpsdError, which becomes the command's answer."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of the daemon, by ordinal."""

    def defaults(self) -> Defaults:
        """Return the present defaults."""

    async def set_defaults(self, defaults: Defaults) -> None:
        """Replace the defaults.  It stores them before it first waits: two concurrent changes must not undo each other."""

    async def servers(self) -> Sequence[ServerView]:
        """Return the servers that have users (no spares), in start order."""

    async def start_server(self, uid: int) -> str:
        """Start a server for `uid`; return the text to print, usually empty."""

    async def shutdown_server(self, pid: int, force: bool) -> str:
        """End a server; return the text to print, usually empty."""

    async def terminate_client(self, server_pid: int, client_pid: int, check: Callable[[], None] = lambda: None) -> str:
        """End one client's GPU work; return the vendor's answer, `0` and a newline on success."""

    async def forward(self, server_pid: int | None, line: str) -> str:
        """Return the answer of the vendor's daemon that runs the server (None: of the default domain's), in its words."""

    async def forward_each(self, lines: Sequence[tuple[int, str]]) -> Sequence[str | MpsdError]:
        """Return the answer to each line of the daemon that runs this server, or its error; all are asked at once."""

    async def quit(self, timeout_seconds: float | None) -> int:
        """End all domains, by force after the timeout; return the exit status once none is left."""
