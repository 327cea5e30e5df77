"""Which process a vendor server means by a pid that it lists.

It lists a client that has ended for as long as a forked child has its connections; its GPU memory stays taken (measured, H200).
"""

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.process import ProcessId


def listed_process(domain: Domain, pid: int) -> ProcessId | None:
    """Return the process that the domain's servers list with this pid; None if it has ended, or is not known.

    Another process can have the pid of an ended client, and is no client.
    """
    found = processes.find(pid)
    return found if domain.admitted.get(pid) in (None, found) else None


def is_listed(domain: Domain, process: ProcessId) -> bool:
    """Return whether a server of the domain lists the client, which may have ended."""
    return domain.admitted.get(process.pid) == process and process.pid in domain.client_pids
