"""Parse the vendor's log lines, in the documented log directory.

They are only news: mpsd confirms them by commands (get_server_list, get_server_status, get_client_list).  Wording: driver 580,
measured on an H200; an unknown line is passed on and means nothing.
"""

import re

from msgspec import Struct

# Numbers have ten digits at most: int() refuses thousands of them with an error.
_LINE = re.compile(r"^\[(?P<stamp>[-0-9 :.]{19,27}) (?P<source>\w+) +(?P<pid>\d{1,10})\] (?P<text>.*)$")


class LogLine(Struct, frozen=True):
    """`stamp` and `source` (Control, Server, Other) are the vendor's own; `pid` is the writer's."""

    stamp: str
    source: str
    pid: int
    text: str


class ServerStarting(Struct, frozen=True):
    pid: int
    uid: int


class ServerReady(Struct, frozen=True):
    pid: int


class ServerExited(Struct, frozen=True):
    pid: int
    status: int


class ServerFault(Struct, frozen=True):
    pid: int


class ClientFault(Struct, frozen=True):
    """The client that the vendor blames for the error; it may be innocent (measured)."""

    server_pid: int
    client_pid: int


class ContextOpened(Struct, frozen=True):
    server_pid: int
    client_pid: int


class ContextClosed(Struct, frozen=True):
    server_pid: int
    client_pid: int
    left: int  # active client contexts that the server still has


class ClientGone(Struct, frozen=True):
    server_pid: int
    client_pid: int


class ClientArrived(Struct, frozen=True):
    """A client's connection has arrived, or was refused: its process is known, or it has one more context."""

    server_pid: int
    client_pid: int


Servers = ServerStarting | ServerReady | ServerExited | ServerFault
Clients = ContextOpened | ContextClosed | ClientGone | ClientArrived | ClientFault
News = Servers | Clients

_CONTROL = (
    (re.compile(r"Starting new server (\d{1,10}) for user (\d{1,10})$"), lambda _, m: ServerStarting(int(m[1]), int(m[2]))),
    (re.compile(r"NEW SERVER (\d{1,10}): Ready$"), lambda _, m: ServerReady(int(m[1]))),
    (re.compile(r"Server (\d{1,10}) exited with status (\d{1,10})$"), lambda _, m: ServerExited(int(m[1]), int(m[2]))),
)
_SERVER = (
    (re.compile(r"Server is handling a fatal GPU error\.$"), lambda pid, _: ServerFault(pid)),
    (
        re.compile(r"Client \{PID: (\d{1,10}), Context(?: ID)?: \d+\} encountered a fatal GPU error\.$"),
        lambda pid, m: ClientFault(pid, int(m[1])),
    ),
    (
        re.compile(r"Client \{PID: (\d{1,10}), Context ID: ([1-9]\d*)\} connected$"),  # context 0 is the process itself
        lambda pid, m: ContextOpened(pid, int(m[1])),
    ),
    (
        re.compile(r"Client \{PID: (\d{1,10}), Context ID: \d+\} exiting\. Number of active client contexts is (\d{1,10})\.$"),
        lambda pid, m: ContextClosed(pid, int(m[1]), int(m[2])),
    ),
    (re.compile(r"Client process (\d{1,10}) disconnected$"), lambda pid, m: ClientGone(pid, int(m[1]))),
    (
        re.compile(
            r"(?:Client \{PID: (\d{1,10}), Context ID: 0\} connected$"
            r"|Status of client \{PID: (\d{1,10}), Context ID: [1-9]\d*\} is ACTIVE$"
            r"|Failed to accept client \{PID: (\d{1,10}), )"
        ),
        lambda pid, m: ClientArrived(pid, int(m[1] or m[2] or m[3])),
    ),
)


def parse_line(line: str) -> LogLine | None:
    match = _LINE.match(line)
    return LogLine(match["stamp"], match["source"], int(match["pid"]), match["text"]) if match else None


def read_news(line: LogLine) -> News | None:
    for pattern, build in _CONTROL if line.source == "Control" else _SERVER:
        if match := pattern.match(line.text):
            return build(line.pid, match)
    return None


_MEANWHILE = re.compile(
    r"NEW (CLIENT|SERVER) |Starting new server |Failed to start server |Server \d+ (exited|has \d+ active) "
    r"|Try shutting down |Force shutting down |Control will try |User did not send |quit command issued |Exit with "
)


class OwnCommands:
    """Distinguishes the lines of mpsd's own commands in a domain's control.log from the rest.

    A command session is `NEW UI`, `Cmd:...`, the answer, `UI closed`; `Accepting connection...` precedes it.  Lines about
    clients and servers at the same time, or because of the command, are written between these lines and belong to the rest.
    """

    def __init__(self) -> None:
        self._in_session = False

    def is_own(self, line: LogLine) -> bool:
        if line.source != "Control":
            return False
        if line.text == "NEW UI" or line.text.startswith("Cmd:"):  # the latter when reading began in mid-session
            self._in_session = True
        if line.text == "UI closed":
            self._in_session = False
            return True
        is_answer = self._in_session and not _MEANWHILE.match(line.text)
        return is_answer or line.text == "Accepting connection..."
