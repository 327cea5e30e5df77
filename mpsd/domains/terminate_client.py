"""End one client's GPU work by the vendor's terminate_client."""

from collections.abc import Callable

import structlog
import trio

from mpsd.domains.awaited_client import UNKNOWN, command_about, how_stopped_now, may_signal
from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import UNREAD
from mpsd.domains.vital_signs import how_stopped
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState

_TURN_SECONDS = 0.05  # for a look in the command's turn: all other commands of the domain wait, and it takes 0.2 ms
log = structlog.get_logger()


async def terminate_client(domain: Domain, server_pid: int, client_pid: int, check: Callable[[], None] = lambda: None) -> str:
    """End the client's GPU work and return the vendor's answer; its process sees error 810 and lives on.  Raises VendorFailed.

    mpsd does not ask for a client that is stopped, or frozen with its cgroup: its co-runners would stand still, and its domain
    take no further client.  It does not ask a domain in FAULT: its vendor daemon would not answer any command until the process
    has ended (measured).  One that stops before the answer is continued, or else killed (awaited_client.py).  So is one whose
    state or cgroup mpsd cannot read: users can cause that, and a client that runs is answered for at once.
    check: called right before the command is sent, which may have to wait; raises if it is not to be sent any more.  Nor is it
    sent if the process has ended since this call: another one may have the pid.
    """
    if domain.state is DomainState.FAULT:
        raise VendorFailed(f"domain {domain.name} is in FAULT: its clients have no GPU work left")
    if domain.state is DomainState.CONTAINED:
        raise VendorFailed(contained(domain))

    process = processes.find(client_pid)  # None: mpsd cannot see it, or it has ended

    def check_now(how: str) -> None:
        check()
        if process is not None and not processes.is_alive(process):
            raise VendorFailed(f"client {client_pid} has ended")
        if how and not (how in (UNKNOWN, UNREAD) and process is not None and may_signal(domain, process)):
            raise VendorFailed(f"client {client_pid} {how}, and its server would wait for it: let it continue first")

    async def check_again() -> None:
        state = processes.state(client_pid)
        how_now = how_stopped(state) or UNREAD
        if how_now == UNREAD and how != UNREAD:  # else it would pass again, and its user can let every look take a second
            with trio.move_on_after(_TURN_SECONDS):
                how_now = await how_stopped_now(domain, client_pid, state)
        check_now(how_now)

    how = await how_stopped_now(domain, client_pid, processes.state(client_pid))
    check_now(how)  # before a sentinel is ended for the command
    try:
        answer = await command_about(domain, process, f"terminate_client {server_pid} {client_pid}", check_again)
    finally:
        domain.mark_stale()  # mpsd's view of the domain is stale, whether it worked or not
    log.info("client.terminated", pid=client_pid, domain=domain.name, answer=answer.strip())
    return answer


def contained(domain: Domain) -> str:
    """Return why a command about a server of a contained domain is refused."""
    return f"domain {domain.name}: its server answers no command since {domain.trouble}; end the process instead (mpsctl stop)"
