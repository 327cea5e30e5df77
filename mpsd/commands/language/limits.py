"""The commands that show and change limits: the daemon's defaults for later servers and clients, and those of one server.

The vendor's daemon keeps a server's limits, so mpsd forwards those commands, rewritten from the parsed values.
A refused limit changes nothing and has exit status 1: a caller that reads no text must not continue without a limit.
"""

from msgspec.structs import replace

from mpsd.commands.language import render
from mpsd.commands.language.board import Board
from mpsd.commands.language.call import Answer, CommandCall
from mpsd.commands.language.grammar import LineRequest, PinnedLimit, SetPercent, SetPriority
from mpsd.errors import BadRequest, NoSuchDevice
from mpsd.model.device import Device
from mpsd.model.device_names import find_device, vendor_ordinal
from mpsd.model.quantities import ACCEPTED_LIMITS, MIB, parse_limit

PRIORITIES = (0, 1)  # normal, below normal


async def get_default_active_thread_percentage(ask: CommandCall[LineRequest]) -> Answer:
    return Answer(render.percent(ask.board.defaults().thread_percent))


async def set_default_active_thread_percentage(ask: CommandCall[SetPercent]) -> Answer:
    """Set the percentage and return the one in force: the old one if the word was not a percentage."""
    if ask.request.thread_percent is not None:
        await ask.board.set_defaults(replace(ask.board.defaults(), thread_percent=ask.request.thread_percent))
    return Answer(render.percent(ask.board.defaults().thread_percent))


async def get_active_thread_percentage(ask: CommandCall[LineRequest]) -> Answer:
    pid = ask.named_server.pid
    return Answer(await ask.board.forward(pid, f"get_active_thread_percentage {pid}"))


async def set_active_thread_percentage(ask: CommandCall[SetPercent]) -> Answer:
    """Set the percentage and return the one in force: the old one if the word was not a percentage."""
    pid, thread_percent = ask.named_server.pid, ask.request.thread_percent
    if thread_percent is None:
        return Answer(await ask.board.forward(pid, f"get_active_thread_percentage {pid}"))
    return Answer(await ask.board.forward(pid, f"set_active_thread_percentage {pid} {thread_percent:.9g}"))


async def get_default_device_pinned_mem_limit(ask: CommandCall[PinnedLimit]) -> Answer:
    if ask.request.device is None:
        return Answer()
    device = find_device(ask.board.devices, ask.request.device)
    return Answer(render.limit(ask.board.defaults().pinned_limits.get(device.uuid)))


async def set_default_device_pinned_mem_limit(ask: CommandCall[PinnedLimit]) -> Answer:
    device, limit_bytes = _understand(ask.board, ask.request)
    defaults = ask.board.defaults()
    limits = {uuid: size for uuid, size in defaults.pinned_limits.items() if uuid != device.uuid}
    if limit_bytes:
        limits[device.uuid] = limit_bytes
    await ask.board.set_defaults(replace(defaults, pinned_limits=limits))
    return Answer()


async def get_device_pinned_mem_limit(ask: CommandCall[PinnedLimit]) -> Answer:
    if ask.request.device is None:
        return Answer()
    server, device = ask.named_server, find_device(ask.board.devices, ask.request.device)
    line = f"get_device_pinned_mem_limit {server.pid} {vendor_ordinal(server, device)}"
    return Answer(await ask.board.forward(server.pid, line))


async def set_device_pinned_mem_limit(ask: CommandCall[PinnedLimit]) -> Answer:
    server = ask.named_server
    device, limit_bytes = _understand(ask.board, ask.request)
    line = f"set_device_pinned_mem_limit {server.pid} {vendor_ordinal(server, device)} {limit_bytes // MIB}M"
    return Answer(await ask.board.forward(server.pid, line))


async def get_default_client_priority(ask: CommandCall[LineRequest]) -> Answer:
    return Answer(render.lines([ask.board.defaults().client_priority]))


async def set_default_client_priority(ask: CommandCall[SetPriority]) -> Answer:
    if ask.request.priority not in PRIORITIES:
        return Answer(render.INVALID_PRIORITY)
    await ask.board.set_defaults(replace(ask.board.defaults(), client_priority=ask.request.priority))
    return Answer()


def _understand(board: Board, asked: PinnedLimit) -> tuple[Device, int]:
    """Return the device and the bytes.  Raises NoSuchDevice or BadRequest, whose message adds that the limit was not set."""
    try:
        if asked.device is None:
            raise BadRequest("a device and a memory limit are required")
        device = find_device(board.devices, asked.device)
        if asked.value is None:
            raise BadRequest(f"a memory limit for device {device.ordinal} is required: {ACCEPTED_LIMITS}")
        return device, parse_limit(asked.value, asked.stray)
    except (BadRequest, NoSuchDevice) as error:
        raise type(error)(f"Memory limit not set: {error}") from None
