"""Which process a vendor server means by a pid that it lists."""

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.process import ProcessId


def listed_process(domain: Domain, pid: int) -> ProcessId | None:
    """Return the process that the domain's servers list with this pid; None if it has ended, or is not known.

    A server lists an ended client for as long as a child of that one has its connection.  Another process can have the pid by
    then, and is no client.
    """
    found = processes.find(pid)
    return found if domain.admitted.get(pid) in (None, found) else None
