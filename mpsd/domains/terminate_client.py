"""End one client's GPU work by the vendor's terminate_client."""

from collections.abc import Callable

import structlog

from mpsd.domains.domain import Domain
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState

_STOPPED = "Tt"  # by a signal, or under a debugger: proc(5)
log = structlog.get_logger()


async def terminate_client(
    domain: Domain, server_pid: int, client_pid: int, check: Callable[[], None] = lambda: None
) -> str:
    """End the client's GPU work and return the vendor's answer; its process sees error 810 and lives on.  Raises VendorFailed.

    mpsd does not ask for a client that is stopped: its co-runners would stand still, and its domain take no further client.  It
    does not ask a domain in FAULT: its vendor daemon would not answer any command until the process has ended (measured).
    check: called right before the command is sent, which may have to wait; raises if it is not to be sent any more.  Nor is it
    sent if the process has ended since this call: another one may have the pid.
    """
    if domain.state is DomainState.FAULT:
        raise VendorFailed(f"domain {domain.name} is in FAULT: its clients have no GPU work left")
    if domain.state is DomainState.CONTAINED:
        raise VendorFailed(contained(domain))

    process = processes.find(client_pid)  # None: mpsd cannot see it, or it has ended

    def check_now() -> None:
        check()
        if process is not None and not processes.is_alive(process):
            raise VendorFailed(f"client {client_pid} has ended")
        if (how := processes.state(client_pid)) in _STOPPED:
            advice = "let its debugger continue it" if how == "t" else f"continue it first (kill -CONT {client_pid})"
            raise VendorFailed(f"client {client_pid} is stopped, and its server would wait for it: {advice}")

    check_now()  # before a sentinel is ended for the command
    try:
        answer = await domain.control.command(f"terminate_client {server_pid} {client_pid}", check=check_now)
    finally:
        domain.mark_stale()  # mpsd's view of the domain is stale, whether it worked or not
    log.info("client.terminated", pid=client_pid, domain=domain.name, answer=answer.strip())
    return answer


def contained(domain: Domain) -> str:
    """Return why a command about a server of a contained domain is refused."""
    return f"domain {domain.name}: its server answers no command since {domain.trouble}; end the process instead (mpsctl stop)"
