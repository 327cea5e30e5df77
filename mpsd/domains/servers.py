"""Find the vendor server of one user in a domain, or start it."""

import os
from collections.abc import Iterable

import trio

from mpsd.domains.domain import Domain
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import ServerView

_POLL_SECONDS = 0.02


async def ensure_server(domain: Domain, uid: int, *, is_multiuser: bool, seconds: float) -> ServerView:
    """Return the server for this user's next client, ready.  An idle server of another user is shut down.  Raise VendorFailed.

    A server that was ready when mpsd last asked, and whose process lives, counts as ready: the start of a client does not wait
    for new answers.
    """
    known = _ready(domain.servers.values(), uid, is_multiuser)
    if known and processes.lives(known.pid):
        return known
    told: set[int] = set()  # servers that were asked to shut down
    with trio.move_on_after(seconds):
        while True:
            servers = await domain.fresh_servers()
            if found := _ready(servers, uid, is_multiuser):
                return found
            if servers:
                await make_way(domain, uid, is_multiuser=is_multiuser, told=told)
            else:
                await domain.control.command(f"start_server -uid {uid}", seconds)
            with trio.move_on_after(_POLL_SECONDS):
                await domain.news.wait()  # a line of its log
            domain.mark_stale()
    raise VendorFailed(f"the server of user {uid} in domain {domain.name} did not start in {seconds:g} s")


async def make_way(domain: Domain, uid: int, *, is_multiuser: bool, told: set[int] | None = None) -> None:
    """Ask the servers of other users without clients to shut down; once for each server: `told` has those that were asked."""
    told = set() if told is None else told
    for server in await domain.fresh_servers():
        is_others = server.uid != uid and not _has_just_begun(server)
        if not is_multiuser and is_others and not server.client_pids and server.pid not in told:
            told.add(server.pid)
            await domain.control.command(f"shutdown_server {server.pid}")


def _has_just_begun(server: ServerView) -> bool:
    """Return whether it may not have become its user's process yet: it begins as its daemon's user."""
    return server.status == "INITIALIZING" and server.uid == os.geteuid()


def _ready(servers: Iterable[ServerView], uid: int, is_multiuser: bool) -> ServerView | None:
    return next((s for s in servers if s.status == "ACTIVE" and (is_multiuser or s.uid == uid)), None)
