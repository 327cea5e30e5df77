"""Which process a vendor server, or an Xid, means by a pid, and whether it stays in its domain.

It lists a client that has ended for as long as a forked child has its connections; its GPU memory stays taken (measured, H200).
"""

import os
from collections.abc import Callable, Iterable, Mapping

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId


def pids_of_xids(domain: Domain) -> set[int]:
    """Return the pids that an Xid of the domain names: its server's, or that of any context, also the sentinel's."""
    return domain.pids_at_work | domain.servers.keys() | domain.sentinel.pids


def may_be_named(domain: Domain, pid: int) -> bool:
    """Return whether an Xid with the pid of a client or member of the domain is of the domain.

    It can name a client on its way in, still without a context; after a contained exception the server takes none.
    """
    return domain.state is not DomainState.CONTAINED or pid in pids_of_xids(domain)


def domain_named(domains: Iterable[Domain], pid: int, was_there: Callable[[int, ProcessId | None], bool]) -> Domain | None:
    """Return the domain of the server, client, member or sentinel's client that an Xid means by the pid; None if it is of none.

    A process of none can have the pid of an ended client that a server still lists.  mpsd may not see it, too: then a client
    is meant only if it lives as far as mpsd knows, or ended a moment ago, as of the fault.
    was_there: returns this of the process, or of the latest client with the pid.
    """
    process = processes.find(pid, even_ending=True)  # None: it has ended, or its user keeps mpsd from reading its facts

    def is_meant_by(domain: Domain) -> bool:
        if process is not None:
            return is_meant(domain.admitted, process)
        return pid in domain.servers or pid in domain.sentinel.pids or was_there(pid, domain.admitted.get(pid))

    meant = [each for each in domains if is_meant_by(each)]
    listing = (each for each in meant if pid in pids_in_use(each))
    placed = (each for each in meant if any(member.pid == pid for member in each.members))
    found = next(listing, None) or next(placed, None)
    return found if found is not None and may_be_named(found, pid) else None


def has_lost_place(domain: Domain, process: ProcessId, key: str) -> bool:
    """Return whether the member leaves: mpsd drains the domain, or clients of another key have it now.

    With a connection, channel or context there it stays.  key: of the domain that its next connection has to go to; it changes
    too where the process is convicted of a fault.
    """
    is_there = process in domain.channels or process.pid in domain.pids_at_work or bool(domain.handshakes[process])
    return (domain.is_draining or domain.key != key) and not is_there


def may_be_used(domain: Domain, process: ProcessId) -> bool:
    """Return whether the process is a member, or has left with a channel to a server of the domain."""
    return process in domain.members or process in domain.channels


def listed_process(admitted: Mapping[int, ProcessId], pid: int) -> ProcessId | None:
    """Return the process that the servers of a domain list with this pid; None if it has ended, or is not known.

    Another process can have the pid of an ended client, and is no client.  mpsd's own pid stands for all clients of other pid
    namespaces (mpsd/relay/forwarding.py).  admitted: of the domain.
    """
    found = processes.find(pid) if pid != os.getpid() else None
    return found if found is not None and is_meant(admitted, found) else None


def may_live(admitted: Mapping[int, ProcessId], pid: int) -> bool:
    """Return whether the client lives that the servers of a domain list with this pid; True if that is not known.

    A later process with the pid of an ended client is none, and can live for as long as its user likes.  admitted: of the
    domain.
    """
    client = admitted.get(pid)
    return processes.lives(pid) if client is None else processes.is_alive(client)


def pids_in_use(domain: Domain) -> set[int]:
    """Return the pids of the domain's servers, of the clients that they list, and of its sentinel's client."""
    return {*domain.servers, *domain.client_pids, *domain.sentinel.pids}


def is_meant(admitted: Mapping[int, ProcessId], process: ProcessId) -> bool:
    """Return whether the servers of a domain that list the process's pid mean the process, as far as mpsd knows."""
    return admitted.get(process.pid) in (None, process)


def may_be_listed(domain: Domain, process: ProcessId, ended_at: float) -> bool:
    """Return whether a server of the domain lists the client, which ended at this trio time, or could in its next answer.

    A client can have a context and end, with a child that has its connections, before mpsd has asked for it.  A later client
    may have its pid, on purpose: as long as that is listed, the child may be there too.
    """
    is_asked = domain.asked_at >= ended_at
    return process.pid in domain.admitted and (not is_asked or process.pid in domain.client_pids)
