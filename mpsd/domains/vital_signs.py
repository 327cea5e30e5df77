"""Detect that a domain cannot answer at all, from its processes and its socket, without asking it.

A stopped vendor daemon counts as silent only after 15 seconds without an answer, and a client that comes in that time waits.
This check, every half second and before each client is placed, sends newcomers elsewhere.
Prose: docs/domains.md, "A domain that cannot answer".
"""

import os
from collections.abc import Callable, Mapping, Sequence

import trio
from msgspec import Struct

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.domain import DomainState

SECONDS = 0.5
_STOPPED = {"T": "is stopped (SIGSTOP): continue it by", "t": "is stopped under a debugger: continue it, or"}
_LOOKED_AT = (DomainState.READY, DomainState.FAULT)


class Signs(Struct, frozen=True):
    """What to check: the processes with their roles, and the socket that clients connect to."""

    pids: Sequence[tuple[str, int]]
    socket: str


async def watch_vital_signs(domains: Mapping[str, Domain], notify: Callable[[], None]) -> None:
    """Check all domains as long as mpsd lives, in a thread: a file system that hangs stops the thread, not the loop."""
    while True:
        signs = {domain.name: _signs(domain) for domain in _alive(domains)}
        found = await trio.to_thread.run_sync(_look_at_all, signs, abandon_on_cancel=True)
        for domain in _alive(domains):
            if domain.find_hindered(found.get(domain.name, domain.hindrance)):
                notify()
        await trio.sleep(SECONDS)


def look_now(domain: Domain) -> bool:
    """Return whether the domain has just become unable to answer.  Two or three reads of /proc/PID/stat, 20 us each."""
    if domain.state not in _LOOKED_AT or domain.hindrance:
        return False
    return domain.find_hindered(look(_signs(domain)))


def _alive(domains: Mapping[str, Domain]) -> list[Domain]:
    return [domain for domain in domains.values() if domain.state in _LOOKED_AT]


def _signs(domain: Domain) -> Signs:
    control = [("vendor daemon", domain.control.process.pid)] if domain.control.process else []
    return Signs((*control, *(("vendor server", pid) for pid in domain.servers)), domain.control.socket_path("control"))


def _look_at_all(signs: Mapping[str, Signs]) -> dict[str, str]:
    return {name: look(each) for name, each in signs.items()}


def look(signs: Signs) -> str:
    """Return why a domain with these signs cannot answer; "" if no sign shows that."""
    for what, pid in signs.pids:
        if advice := _STOPPED.get(processes.state(pid)):
            return f"its {what}, pid {pid}, {advice} `kill -CONT {pid}`"
    if not os.path.lexists(signs.socket):
        return f"its socket {signs.socket} was removed: it comes back when its clients have ended"
    return ""
