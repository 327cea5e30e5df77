"""The commands that only the vendor's daemons can answer: forwarded to the domains; their answers are merged.

`ps`, `get_device_client_list` and `device_query` ask the domain of every server and merge.  Commands that driver 580 lacks
(`lspart`, `sm_partition`) go to the default domain, and its text comes back unchanged.
"""

from collections.abc import Sequence
from typing import Any

from mpsd.commands.language import merge, render
from mpsd.commands.language.call import Answer, CommandCall
from mpsd.commands.language.grammar import DeviceQuery, LineRequest, PassOn
from mpsd.errors import BadRequest, MpsdError, NoSuchServer
from mpsd.model.domain import ServerView

MAX_FORWARDED_BYTES = 1024  # the vendor's daemon takes 2000, and crashes at 4095


async def ps(ask: CommandCall[LineRequest]) -> Answer:
    servers = await _servers_asked_about(ask)
    if not servers:
        return Answer(render.NO_SERVER)
    answers, silent = await _forward_each(ask, servers, "ps -p {pid}")
    return _merged(merge.merge_ps(text for _, text in answers), silent)


async def get_device_client_list(ask: CommandCall[LineRequest]) -> Answer:
    answers, silent = await _forward_each(ask, await _servers_asked_about(ask), "get_device_client_list {pid}")
    public = {device.uuid: device.ordinal for device in ask.board.devices}
    numbered = [(text, [public.get(uuid, at) for at, uuid in enumerate(of.device_uuids)]) for of, text in answers]
    return _merged(merge.merge_device_clients(numbered), silent)


async def device_query(ask: CommandCall[DeviceQuery]) -> Answer:
    csv = " --csv" if ask.request.is_csv else ""
    servers = await _servers_asked_about(ask)
    if not servers:
        return Answer(await ask.board.forward(None, f"device_query{csv}"))
    answers, silent = await _forward_each(ask, servers, f"device_query {{pid}}{csv}")
    public = {device.uuid: device.ordinal for device in ask.board.devices}
    return _merged(merge.merge_device_queries((text for _, text in answers), public), silent)


async def pass_on(ask: CommandCall[PassOn]) -> Answer:
    """Return the default domain's own answer; with several domains, stderr names the one that was asked."""
    if len(ask.request.line.encode()) > MAX_FORWARDED_BYTES:
        raise BadRequest(f"a command of {len(ask.request.line.encode())} bytes is not passed on to the vendor's daemon")
    answer = await ask.board.forward(None, ask.request.line)
    domains = sorted({server.domain for server in await ask.board.servers()})
    note = f"Asked the default domain alone; the domains with servers: {', '.join(domains)}\n" if len(domains) > 1 else ""
    return Answer(answer, stderr=note)


async def _servers_asked_about(ask: CommandCall[Any]) -> Sequence[ServerView]:
    return [ask.server] if ask.server else await ask.board.servers()


async def _forward_each(
    ask: CommandCall[Any], servers: Sequence[ServerView], line: str
) -> tuple[list[tuple[ServerView, str]], list[MpsdError]]:
    """Return each server with its domain's answer, and the errors of the others; a server that has just ended is in neither."""
    found = await ask.board.forward_each([(server.pid, line.format(pid=server.pid)) for server in servers])
    answers = [(server, each) for server, each in zip(servers, found, strict=True) if isinstance(each, str)]
    return answers, [each for each in found if isinstance(each, MpsdError) and not isinstance(each, NoSuchServer)]


def _merged(text: str, silent: Sequence[MpsdError]) -> Answer:
    """Return the merged answer; if a part is missing, with its errors and exit status 1."""
    return Answer(text, 1 if silent else 0, render.lines(silent))
