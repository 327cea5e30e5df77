"""Whether a domain can answer at all, as its processes and its socket show without asking it.

A vendor daemon that is stopped is asked in vain for 15 seconds before it counts as silent, and a client that comes meanwhile
waits.  What is seen here, every half second and before each client is placed, sends newcomers elsewhere.  Prose:
docs/domains.md, "A domain that cannot answer".
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from mpsd import processes
from mpsd.model import DomainState

if TYPE_CHECKING:
    from mpsd.domains.domain import Domain
    from mpsd.domains.pool import Pool

SECONDS = 0.5
_STOPPED = {"T": "is stopped (SIGSTOP): continue it by", "t": "is stopped under a debugger: let it go on, or"}
_LOOKED_AT = (DomainState.READY, DomainState.FAULT)


@dataclass(frozen=True, slots=True)
class Signs:
    """Where to look: the processes by what they are, and the socket that clients are led to."""

    pids: Sequence[tuple[str, int]]
    socket: str


async def watch_vital_signs(pool: "Pool") -> None:
    """Lives as long as mpsd.  In a thread: a file system that hangs stops the thread and not the loop."""
    while True:
        found = await trio.to_thread.run_sync(_look_at_all, {d.name: _signs(d) for d in _alive(pool)}, abandon_on_cancel=True)
        for domain in _alive(pool):
            if domain.find_hindered(found.get(domain.name, domain.hindrance)):
                pool.notify()
        await trio.sleep(SECONDS)


def look_now(domain: "Domain") -> bool:
    """Whether it has just been found that the domain cannot answer.  Two or three reads of /proc/PID/stat, 20 us each."""
    if domain.state not in _LOOKED_AT or domain.hindrance:
        return False
    return domain.find_hindered(look(_signs(domain)))


def _alive(pool: "Pool") -> list["Domain"]:
    return [domain for domain in pool.domains.values() if domain.state in _LOOKED_AT]


def _signs(domain: "Domain") -> Signs:
    control = [("vendor daemon", domain.control.process.pid)] if domain.control.process else []
    return Signs((*control, *(("vendor server", pid) for pid in domain.servers)), domain.control.socket_path("control"))


def _look_at_all(signs: Mapping[str, Signs]) -> dict[str, str]:
    return {name: look(each) for name, each in signs.items()}


def look(signs: Signs) -> str:
    """Why a domain with these cannot answer; "" where nothing shows that it could not."""
    for what, pid in signs.pids:
        if advice := _STOPPED.get(processes.state(pid)):
            return f"its {what}, pid {pid}, {advice} `kill -CONT {pid}`"
    if not os.path.lexists(signs.socket):
        return f"its socket {signs.socket} was removed: it comes back when its clients have ended"
    return ""
