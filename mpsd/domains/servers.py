"""Find the vendor server of one user in a domain, or start it."""

import math
import os
from collections.abc import Iterable

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import ServerView

log = structlog.get_logger()
_POLL_SECONDS = 0.02
_STAYS_SECONDS = 0.5  # a server without connections has ended by then
_OTHERS_SECONDS = 5.0  # until a client is linked all the same: the vendor daemon queues it


async def ensure_server(domain: Domain, uid: int, *, is_multiuser: bool, seconds: float) -> ServerView:
    """Return the server for this user's next client, ready.  An idle server of another user is shut down.  Raise VendorFailed.

    A server that was ready when mpsd last asked, and has not ended, counts as ready: the start of a client does not wait
    for new answers.
    """
    known = _ready(domain.servers.values(), uid, is_multiuser)
    if known and processes.lives(known.pid):
        return known
    asked_at: dict[int, float] = {}  # servers that were asked to shut down
    with trio.move_on_after(seconds):
        while True:
            servers = await domain.fresh_servers()
            if found := _ready(servers, uid, is_multiuser):
                return found
            if servers:
                await make_way(domain, uid, is_multiuser=is_multiuser, asked_at=asked_at)
            else:
                await domain.control.command(f"start_server -uid {uid}", seconds)
            await _next_look(domain)
    raise VendorFailed(f"the server of user {uid} in domain {domain.name} did not start in {seconds:g} s")


async def end_others(domain: Domain, uid: int, *, is_multiuser: bool) -> None:
    """Return once no idle server of another user is there, or after some seconds.  Raise VendorFailed.

    The vendor daemon itself ends such a server for this user's client, but waits for ever for one with a connection.  mpsd
    waits for no server of a known client, which may need the turn of this connection for its context.
    """
    if is_multiuser or any(server.uid == uid for server in domain.servers.values()):
        return
    asked_at: dict[int, float] = {}
    with trio.move_on_after(_OTHERS_SECONDS):
        while not domain.served and any(_is_idle_of_another(domain, server, uid) for server in await domain.fresh_servers()):
            await make_way(domain, uid, is_multiuser=False, asked_at=asked_at)
            await _next_look(domain)


async def _next_look(domain: Domain) -> None:
    with trio.move_on_after(_POLL_SECONDS):
        await domain.news.wait()  # a line of its log
    domain.mark_stale()


async def make_way(domain: Domain, uid: int, *, is_multiuser: bool, asked_at: dict[int, float] | None = None) -> None:
    """Ask the idle servers of other users to shut down, each once; shut one that stays down by force.

    asked_at: the trio time of that for each server.  A server stays while a process has a connection to it.  No list shows a
    connection without a context, and a child can have that of a client that has ended.
    """
    asked_at = {} if asked_at is None else asked_at
    for server in await domain.fresh_servers():
        if is_multiuser or not _is_idle_of_another(domain, server, uid):
            continue
        if server.pid not in asked_at:
            asked_at[server.pid] = trio.current_time()
            await domain.control.command(f"shutdown_server {server.pid}")
        elif trio.current_time() - asked_at[server.pid] > _STAYS_SECONDS and not domain.served:
            asked_at[server.pid] = math.inf
            log.warning("server.forced", domain=domain.name, server=server.pid, uid=server.uid,
                        why="it stays for a connection, and no client of it is known")  # fmt: skip
            await domain.control.command(f"shutdown_server {server.pid} -f")


def age_ns(domain: Domain) -> int:
    """Return for how long the oldest server of the domain has run, up to a clock tick more; all time if one has gone."""
    first = min(found.start_time if (found := processes.find(pid)) else 0 for pid in domain.servers)
    return (processes.ticks_at() + 1 - first) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _is_idle_of_another(domain: Domain, server: ServerView, uid: int) -> bool:
    """Return whether it lists no client, and mpsd links none: on an EXCLUSIVE_PROCESS GPU users meet in one domain."""
    if server.uid == uid or server.client_pids or _has_just_begun(server):
        return False
    own = {each.pid for each in domain.members if domain.uids.get(each) == uid}
    return domain.guard.connecting_pids <= own


def _has_just_begun(server: ServerView) -> bool:
    """Return whether it may not have become its user's process yet: it begins as its daemon's user."""
    return server.status == "INITIALIZING" and server.uid == os.geteuid()


def _ready(servers: Iterable[ServerView], uid: int, is_multiuser: bool) -> ServerView | None:
    return next((s for s in servers if s.status == "ACTIVE" and (is_multiuser or s.uid == uid)), None)
