"""End vendor daemons that lost their directories: no process can connect to them, but their clients continue.

mpsd ends such a domain by itself, unless it is restarted before.  So it records the clients (`record`); the next mpsd finds the
daemons by their environment, and ends each after its last client, or at `quit`.  Without a record, mpsd assumes that a daemon
with a server has clients.  Prose: docs/operating.md, "At three in the morning".
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from msgspec import Struct

from mpsd.domains.directories import OPEN
from mpsd.domains.domain import Domain
from mpsd.domains.leftovers import DIRECTORY_VARIABLE, is_vendors, is_vendors_name, kill
from mpsd.host import processes
from mpsd.host.file_identity import FileId, identity_at
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.process_exit import wait_ended
from mpsd.host.process_reader import ProcessReader
from mpsd.host.process_search import search
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_RECORD = "clients-of-removed"
_OPEN_FILES = ("control_lock (deleted)", "log (deleted)", "control.log (deleted)")  # vendor programs have some of them open
_LOOK_SECONDS = 1.0  # between two looks whether a daemon still has a server
_GONE_SECONDS = 5.0


class Orphan(Struct, frozen=True):
    """A vendor daemon that cannot be reached.  clients: None if they are unknown."""

    daemon: ProcessId
    clients: frozenset[ProcessId] | None

    @property
    def has_clients(self) -> bool:
        if not processes.is_alive(self.daemon):
            return False
        if self.clients is None:
            return processes.state(self.daemon.pid) == "?" or bool(_servers(self.daemon))
        return any(processes.is_alive(client) for client in self.clients)


class Outlived:
    """Guards that mpsd ends such a daemon after its last client or at `quit`, and never a daemon of another mpsd."""

    def __init__(self) -> None:
        self._orphans: list[Orphan] = []

    @property
    def with_clients(self) -> int:
        """How many of the daemons still have clients."""
        return sum(orphan.has_clients for orphan in self._orphans)

    async def record(self, home: Path, domains: Iterable[Domain]) -> None:
        """Record the clients of each running daemon for the next mpsd.  Raises OSError.

        home: the folder of all domains.
        """
        known = [Orphan(each.control.process, frozenset(each.members)) for each in domains if each.control.process]
        lines = [[each.daemon, *each.clients] for each in (*self._orphans, *known) if each.clients is not None]
        text = "".join(" ".join(f"{each.pid}:{each.start_time}" for each in line) + "\n" for line in lines)
        await run_in_thread(_write, home / _RECORD, text)

    async def run(self, home: Path, found: Iterable[ProcessId]) -> None:
        """End each daemon after its last client; return when all have ended.  found: the daemons that no domain has adopted."""
        clients = _read(home / _RECORD)
        self._orphans = [Orphan(daemon, clients.get(daemon)) for daemon in found]
        async with trio.open_nursery() as nursery:
            for orphan in self._orphans:
                effect = "it is ended after its last client, or at `quit`"
                log.warning("domain.outlived", vendor_pid=orphan.daemon.pid, clients=_pids(orphan.clients), effect=effect)
                nursery.start_soon(self._see_off, orphan)
        with suppress(OSError):
            (home / _RECORD).unlink(missing_ok=True)

    async def end_all(self) -> None:
        """End all daemons now, and with them the GPU work of their clients."""
        async with trio.open_nursery() as nursery:
            for orphan in self._orphans:
                nursery.start_soon(_end, orphan.daemon)

    async def _see_off(self, orphan: Orphan) -> None:
        for client in orphan.clients or ():
            await wait_ended(client)  # for ever: a client may live as long as it likes
        await self._until_unused(orphan)
        await _end(orphan.daemon)
        self._orphans.remove(orphan)

    async def _until_unused(self, orphan: Orphan) -> None:
        while True:
            if not orphan.has_clients:
                return
            await trio.sleep(_LOOK_SECONDS)


async def find_unreachable(home: Path, inspector: Inspector) -> list[ProcessId]:
    """Return the daemons that had their directories below `home` before the directories were removed.

    Call it before a domain is started.
    """
    homeless = await run_in_thread(_homeless)
    found = [process for process in homeless if await _is_from(home, process, inspector)]
    pids = {process.pid for process in found}
    return [process for process in found if processes.parent(process.pid) not in pids]  # a server ends with its daemon


async def _is_from(home: Path, process: ProcessId, inspector: Inspector) -> bool:
    try:
        facts = await inspector.facts(process.pid, [DIRECTORY_VARIABLE])
    except (OSError, Unreadable):
        return False  # mpsd leaves it alone
    return facts is not None and Path(facts.variables.get(DIRECTORY_VARIABLE, "")).parent.parent == home


def _homeless(clock: Callable[[], float] = time.monotonic) -> list[ProcessId]:
    """Return the vendor's processes of mpsd's user with removed files, except those of a container with another root.

    Any process can have the vendor's name, so that users decide how many mpsd looks at.
    """
    homeless, missing = search(is_vendors_name, partial(_if_homeless, identity_at("/")), clock)
    if missing:
        effect = "a vendor daemon that lost its directory, and was not found so far, is left to itself"
        log.warning("domain.not_searched", why=missing, effect=effect)
    return homeless


def _if_homeless(root: FileId | None, process: ProcessId, reader: ProcessReader) -> ProcessId | None:
    """Return the process if it has mpsd's root and removed files.  Raises OSError."""
    if reader.linked_file(process.pid, "root").identity != root:
        return None
    return process if reader.numbers(process.pid, _OPEN_FILES) else None


def _servers(daemon: ProcessId) -> list[ProcessId]:
    return [process for pid in processes.children(daemon.pid) if is_vendors(pid) and (process := processes.find(pid))]


async def _end(daemon: ProcessId) -> None:
    """Kill the daemon and its servers.  No command can end it, since no process can connect to it."""
    if not processes.is_alive(daemon):
        return
    servers = _servers(daemon)
    for process in (daemon, *servers):
        kill(process)
    with trio.move_on_after(_GONE_SECONDS):
        for process in (daemon, *servers):
            await wait_ended(process)
    log.info("domain.gone", vendor_pid=daemon.pid)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=OPEN, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _read(path: Path) -> dict[ProcessId, frozenset[ProcessId]]:
    """Return the recorded clients by daemon; empty if the record is missing or damaged."""
    try:
        lines = [[ProcessId(*map(int, word.split(":"))) for word in line.split()] for line in path.read_text().splitlines()]
        return {daemon: frozenset(clients) for daemon, *clients in lines}
    except (OSError, ValueError, TypeError):
        return {}


def _pids(clients: frozenset[ProcessId] | None) -> list[int] | None:
    return None if clients is None else sorted(client.pid for client in clients)
