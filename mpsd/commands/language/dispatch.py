"""dispatch(): the only way from a line to a handler, and so the only place that checks privilege.

    line --parse_words--> words --COMMANDS--> command --parse--> request --(server known? caller may?)--> handler --> Answer

The checks have the vendor's order: an unreadable line, then an unknown server, then a caller without the privilege.
docs/compatibility.md lists where the answers differ from the vendor's.
"""

from mpsd.commands.language import grammar, render
from mpsd.commands.language.board import Board
from mpsd.commands.language.call import Answer, CommandCall
from mpsd.commands.language.command_table import COMMANDS, CommandPrivilege
from mpsd.commands.language.grammar import LineRequest, Rejected, StartServer
from mpsd.errors import ErrorCode, MpsdError
from mpsd.model.authority import Caller
from mpsd.model.domain import ServerView

# Refusals that the vendor answers with exit status 0, because its daemon did answer.  All others are 1.
_STATUS_ZERO = frozenset({ErrorCode.NO_SUCH_SERVER, ErrorCode.NO_SUCH_CLIENT, ErrorCode.NOT_ALLOWED})


async def dispatch(board: Board, caller: Caller, line: bytes) -> Answer:
    """Run one line.  Every refusal is an answer; only a bug raises."""
    try:
        return await _dispatch(board, caller, line)
    except MpsdError as error:
        return answer_error(error)


def answer_error(error: MpsdError) -> Answer:
    """Return a refusal as the front end shows it: on stdout, as the vendor's are."""
    if isinstance(error, Rejected):
        return Answer(str(error), error.status)
    return Answer(f"{error}\n", 0 if error.code in _STATUS_ZERO else 1)


async def _dispatch(board: Board, caller: Caller, line: bytes) -> Answer:
    words = grammar.parse_words(line)
    command = COMMANDS.get(words.name)
    if command is None:
        return Answer(render.unknown_command(words.name))
    request = command.parse(words.arguments)
    server = None
    if request.server_pid is not None:
        server = await _find_server(board, request.server_pid)
        if server is None:
            return Answer(command.unknown_server(request))
    if not _may(command.privilege, caller, request, server):
        return Answer(command.refusal(caller.uid))
    return await command.run(CommandCall(board, request, server))


async def _find_server(board: Board, pid: int) -> ServerView | None:
    return next((server for server in await board.servers() if server.pid == pid), None)


def _may(privilege: CommandPrivilege, caller: Caller, request: LineRequest, server: ServerView | None) -> bool:
    if privilege is CommandPrivilege.ANYONE or caller.is_owner:
        return True
    user = request.uid if isinstance(request, StartServer) else server.uid if server else None
    has_reach = caller.is_inside or isinstance(request, StartServer)  # a server has clients of other containers, too
    return privilege is CommandPrivilege.USER and user == caller.uid and has_reach
