"""The commands about servers and their clients, answered by the board."""

from mpsd.commands.language import render
from mpsd.commands.language.call import Answer, CommandCall
from mpsd.commands.language.grammar import LineRequest, Quit, ShutdownServer, StartServer, TerminateClient


async def get_server_list(ask: CommandCall[LineRequest]) -> Answer:
    return Answer(render.lines(server.pid for server in await ask.board.servers()))


async def get_server_status(ask: CommandCall[LineRequest]) -> Answer:
    return Answer(render.lines([ask.named_server.status]))


async def get_client_list(ask: CommandCall[LineRequest]) -> Answer:
    return Answer(render.lines(ask.named_server.client_pids))


async def start_server(ask: CommandCall[StartServer]) -> Answer:
    return Answer(await ask.board.start_server(ask.request.uid))


async def shutdown_server(ask: CommandCall[ShutdownServer]) -> Answer:
    return Answer(await ask.board.shutdown_server(ask.named_server.pid, ask.request.is_forced))


async def terminate_client(ask: CommandCall[TerminateClient]) -> Answer:
    """Terminate a client.  A pid of 0 or less never reaches the daemon: to kill(2) it means a group."""
    if ask.request.client_pid <= 0:
        return Answer(render.invalid_process(ask.request))
    return Answer(await ask.board.terminate_client(ask.named_server.pid, ask.request.client_pid))


async def quit_daemon(ask: CommandCall[Quit]) -> Answer:
    return Answer(status=await ask.board.quit(ask.request.timeout_seconds))
