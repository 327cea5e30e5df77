"""Which processes are in a domain, and which one a vendor server means by a pid that it lists.

It lists a client that has ended for as long as a forked child has its connections; its GPU memory stays taken (measured, H200).
"""

import math
from collections.abc import Mapping

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId


def known_pids(domain: Domain) -> set[int]:
    """Return the pids of the domain's members and clients: to look for each of a thousand processes costs more."""
    return domain.client_pids.union(process.pid for process in domain.members)


def pids_of_xids(domain: Domain) -> set[int]:
    """Return the pids that an Xid of the domain names: its server's, or that of any context, also the sentinel's."""
    return domain.pids_at_work | domain.servers.keys() | domain.sentinel.pids


def may_be_named(domain: Domain, pid: int) -> bool:
    """Return whether an Xid with this pid, which the domain knows, is of the domain.

    It can also name a client on its way in, still without a context; after a contained exception the server takes none.  Any
    other member can have caused it elsewhere, even past MPS, and the domain's clients would be taken for lost: a process stays
    a member until it ends, also when another user has the domain.
    """
    return pid in pids_of_xids(domain) or (domain.state is not DomainState.CONTAINED and pid in domain.present_pids)


def has_lost_place(domain: Domain, process: ProcessId, key: str, *, is_multiuser: bool) -> bool:
    """Return whether the member leaves: mpsd drains the domain, or another user or clients of another key have it now.

    With a connection, channel or context there it stays.  key: of the domain that its next connection has to go to; it changes
    too where the process is convicted of a fault.
    """
    is_anothers = not is_multiuser and _is_anothers(domain, domain.uids.get(process))
    return (domain.is_draining or domain.key != key or is_anothers) and not _has_place(domain, process)


def is_without_place(domain: Domain, process: ProcessId, uid: int | None) -> bool:
    """Return whether another user has the domain now, and this user's process has no place there.

    Of a domain that one server serves for one user at a time.
    """
    return _is_anothers(domain, uid) and not _has_place(domain, process)


def _is_anothers(domain: Domain, uid: int | None) -> bool:
    return None not in (uid, domain.joined_uid) and uid != domain.joined_uid


def _has_place(domain: Domain, process: ProcessId) -> bool:
    """Return whether the process has a connection, channel or context there."""
    is_at_work = process.pid in domain.pids_at_work or domain.members.get(process) == math.inf
    return is_at_work or bool(domain.handshakes[process])


def listed_process(admitted: Mapping[int, ProcessId], pid: int) -> ProcessId | None:
    """Return the process that the servers of a domain list with this pid; None if it has ended, or is not known.

    Another process can have the pid of an ended client, and is no client.  admitted: of the domain.
    """
    found = processes.find(pid)
    return found if found is not None and is_meant(admitted, found) else None


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
