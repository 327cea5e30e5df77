"""Detect that a domain cannot answer at all, from its processes, its socket and its clients, without asking it.

A stopped vendor daemon counts as silent only after 15 seconds without an answer, and a client that comes in that time waits.
This check, every half second and before each client is placed, sends newcomers elsewhere.

A server cannot complete its fatal path after an SM exception while one of its clients is stopped, and does not answer then
(measured: docs/sentinel.md).  A stopped client alone harms no other one: mpsd only asks its server whether it answers.
Prose: docs/domains.md, "A domain that cannot answer".
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
import trio
from msgspec import Struct

from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import FrozenClients
from mpsd.domains.leftovers import is_vendors
from mpsd.domains.listed import listed_process
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()
SECONDS = 0.5
_LOOKS_AT_CLIENTS = 10  # every tenth look is at the clients of servers that answer, too
_STOPPED = {"T": "is stopped (SIGSTOP): continue it by", "t": "is stopped under a debugger: continue it, or"}
_CLIENT_STOPPED = {"T": "is stopped (SIGSTOP)", "t": "is stopped under a debugger"}
_BLOCKED = (
    "a client {}, and its server waits for it, as after an SM exception of another one: the work of all clients there stands "
    "still, and they end when it continues"
)
_LOOKED_AT = (DomainState.READY, DomainState.FAULT)


class Signs(Struct, frozen=True):
    """What to check: the processes with their roles, the socket that clients connect to, and some or all clients.

    daemon: the vendor daemon, also before it lists its servers; 0: none is known.  admitted: the clients that mpsd knows.
    frozen: how a client's cgroup is frozen, by pid, as far as mpsd knows.
    """

    pids: Sequence[tuple[str, int]]
    socket: str
    clients: Sequence[int] = ()
    is_answering: bool = True
    daemon: int = 0
    admitted: Mapping[int, ProcessId] = {}
    frozen: Mapping[int, str] = {}


class Unresponsive(Struct, frozen=True):
    """Why a domain cannot answer; "": no sign shows that.  clients: the stopped ones, if that is why or its server answers."""

    why: str = ""
    clients: tuple[int, ...] = ()


async def watch_vital_signs(
    domains: Mapping[str, Domain],
    notify: Callable[[], None],
    publish: Callable[[str, Mapping[str, Any]], None],
    frozen: FrozenClients,
    share_of: Callable[[int], int],
) -> None:
    """Check all domains as long as mpsd lives, in a thread: it takes 40 us and more for each.

    A client whose cgroup was found frozen counts from the next check on.  share_of: the uid that a uid counts as.
    """
    async with trio.open_nursery() as looks:
        for turn in itertools.count():
            is_full = turn % _LOOKS_AT_CLIENTS == 0
            signs = {
                domain.name: _signs(domain, is_full or not domain.is_answering, frozen.found) for domain in _alive(domains)
            }
            clients = {pid for each in signs.values() for pid in each.clients}
            if is_full:
                frozen.keep(clients)
            found, shares = await run_in_thread(_look_at_all, signs, frozen, clients, abandon_on_cancel=True)
            for domain in _alive(domains):
                if (finding := found.get(domain.name)) is not None:
                    _take(domain, finding, publish, share_of)
                    if domain.find_hindered(finding.why):
                        notify()
            frozen.look(shares, looks)
            await trio.sleep(SECONDS)


def look_now(domain: Domain) -> bool:
    """Return whether the domain has just become unable to answer.  Some reads below /proc, 20 us each."""
    if domain.state not in _LOOKED_AT or domain.hindrance:
        return False
    return domain.find_hindered(look(_signs(domain)).why)


def why_stopped(daemon: ProcessId) -> str:
    """Return which part of an adopted domain is stopped; "": none."""
    return _stopped([("vendor daemon", daemon.pid)]) or _stopped(_servers_of(daemon.pid))


def _servers_of(daemon: int) -> Iterator[tuple[str, int]]:
    """Yield the servers that are not listed yet, too: their user can stop them before mpsd has asked for them."""
    return (("vendor server", pid) for pid in processes.children(daemon) if is_vendors(pid))


def _alive(domains: Mapping[str, Domain]) -> list[Domain]:
    return [domain for domain in domains.values() if domain.state in _LOOKED_AT]


def _take(
    domain: Domain, finding: Unresponsive, publish: Callable[[str, Mapping[str, Any]], None], share_of: Callable[[int], int]
) -> None:
    """Ask the server of a stopped client, and report one for which the server waits.

    If several users have stopped clients there, the domain counts against none of them: one of them may do no harm.
    """
    users = {pid: _known_user(domain, pid) for pid in finding.clients} if finding.why else {}
    if (unknown := next((pid for pid, uid in users.items() if uid is None), None)) is not None:
        users[unknown] = processes.sole_uid(unknown)  # of one: a status takes 20 ms with 65,536 groups
    pid, uid = next(((pid, uid) for pid, uid in users.items() if uid is not None), (0, None))
    is_of_one = len({uid if uid is None else share_of(uid) for uid in users.values()}) == 1
    before = domain.blocked_by
    domain.blocked_by = None if uid is None else (pid, uid if is_of_one else None)
    if finding.clients and not finding.why:
        domain.mark_stale()
    if domain.blocked_by is None or (before is not None and before[0] == pid):
        return
    facts = {"pid": pid, "uid": uid, "domain": domain.name}
    log.error("client.stopped", **facts, why=finding.why)
    publish("client.stopped", facts)


def _known_user(domain: Domain, pid: int) -> int | None:
    """Return the user who connected with the client, which may run another user's program by now; None if not known."""
    process = listed_process(domain.admitted, pid)
    return None if process is None else domain.uids.get(process)


def _signs(domain: Domain, with_clients: bool = False, frozen: Mapping[int, str] = {}) -> Signs:
    daemon = domain.control.process.pid if domain.control.process else 0
    control = [("vendor daemon", daemon)] if daemon else []
    servers = (("vendor server", pid) for pid in domain.servers)
    # Those by the log too: a client may be stopped before the server has listed it, and then the server answers no more.
    known = domain.client_pids | {each.pid for each in domain.connected} if with_clients or frozen else set[int]()
    clients = sorted(known if with_clients else known & frozen.keys())
    socket = domain.control.socket_path("control")
    return Signs((*control, *servers), socket, clients, domain.is_answering, daemon, domain.admitted, frozen)


def _look_at_all(
    signs: Mapping[str, Signs], frozen: FrozenClients, clients: Iterable[int]
) -> tuple[dict[str, Unresponsive], dict[int, list[int]]]:
    """Return why domains cannot answer, and the clients of each user, by its share."""
    return {name: look(each) for name, each in signs.items()}, frozen.by_share(clients)


def look(signs: Signs) -> Unresponsive:
    """Return why a domain with these signs cannot answer."""
    if why := _stopped(signs.pids) or _stopped(_servers_of(signs.daemon)):
        return Unresponsive(why)
    if not os.path.lexists(signs.socket):
        return Unresponsive(f"its socket {signs.socket} was removed: it comes back when its clients have ended")
    how = {pid: how_stopped(processes.state(pid)) or signs.frozen.get(pid, "") for pid in signs.clients}
    if stopped := tuple(pid for pid in signs.clients if how[pid] and listed_process(signs.admitted, pid) is not None):
        return Unresponsive("" if signs.is_answering else _BLOCKED.format(how[stopped[0]]), stopped)
    return Unresponsive()


def _stopped(pids: Iterable[tuple[str, int]]) -> str:
    for what, pid in pids:
        if advice := _STOPPED.get(processes.state(pid)):
            return f"its {what}, pid {pid}, {advice} `kill -CONT {pid}`"
    return ""


def how_stopped(state: str) -> str:
    """Return how a process in this state (`processes.state`) was stopped, other than by its cgroup; "" if it was not."""
    return _CLIENT_STOPPED.get(state, "")
