"""Ask a vendor daemon for its servers, their states and their clients."""

from collections.abc import Callable, Collection

from mpsd.domains.rules import server_answers
from mpsd.domains.vendor_control import VendorControl
from mpsd.host import processes


async def ask_servers(
    control: VendorControl, known: Collection[int], is_started: Callable[[int], bool]
) -> list[tuple[int, int, str, list[int]]]:
    """Return pid, uid, state and clients of each server, but do not ask about one that is starting.  Raise VendorFailed.

    The daemon can hang if it is asked about a server that is just reporting to it (measured, two GPUs).  Each session
    starts a vendor program: while the only server stays the same, one session asks everything.  known: the servers so far.
    """
    servers = []
    started = [pid for pid in known if is_started(pid)]
    only = started[0] if len(known) == len(started) == 1 else None
    pids, told = server_answers.split_list(await control.commands(server_answers.questions(only)))
    if only and not told:  # without a state between them, the two lists look like one
        pids, _ = server_answers.split_list(await control.commands(server_answers.questions(None)))
    for pid in pids:
        status, clients = "INITIALIZING", list[int]()
        if is_started(pid):
            if pid != only or not told:
                told = await control.commands(server_answers.about(pid))
            status, clients = server_answers.parse_server(told)
        if owner := processes.owner(pid):  # None: it ended between the list and the question
            servers.append((pid, owner[0], status, clients))
    return servers
