"""limits.get and set: the same defaults as the set_default_... commands of the command language."""

from collections.abc import Mapping

from msgspec.structs import replace

from mpsd.api.call import Call
from mpsd.commands.language.board import Board
from mpsd.errors import BadRequest
from mpsd.model.device_names import find_device
from mpsd.wire import daemon_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import MIB, Nothing, SetLimits


async def get(call: Call[Nothing]) -> Map:
    return daemon_results.limits(call.services.board.defaults())


async def set_limits(call: Call[SetLimits]) -> Map:
    """Set the limits that are not nil.  The answer has the limits in force afterwards."""
    ask, board = call.ask, call.services.board
    present = board.defaults()
    percent, priority = ask.default_active_thread_percentage, ask.default_client_priority
    wanted = replace(
        present,
        thread_percent=present.thread_percent if percent is None else percent,
        client_priority=present.client_priority if priority is None else priority,
        pinned_limits=_pinned_limits(board, ask.default_device_pinned_mem_limit or {}),
    )
    if wanted != present:
        await board.set_defaults(wanted)
    return daemon_results.limits(board.defaults())


def _pinned_limits(board: Board, asked: Mapping[str, int]) -> Mapping[str, int]:
    """Return the pinned memory limits with these changes.

    The vendor counts whole MiB: a smaller limit would become 0, which means no limit.
    """
    limits = dict(board.defaults().pinned_limits)
    for name, size in asked.items():
        device = find_device(board.devices, name)
        if 0 < size < MIB:
            raise BadRequest(f"parameter default_device_pinned_mem_limit: found {size}; accepted: 0, or {MIB} and more")
        limits[device.uuid] = size // MIB * MIB
    return {uuid: size for uuid, size in limits.items() if size}
