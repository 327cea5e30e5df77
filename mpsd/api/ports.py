"""The parts of the daemon that the methods of this socket act on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from mpsd.commands.language.board import Board
from mpsd.domains.operations import DomainOperations
from mpsd.faults.incidents import Incidents
from mpsd.leases.lease_book import LeaseBook
from mpsd.model.arena import KeeperView
from mpsd.model.process import ProcessId
from mpsd.services.requests import ServiceRequests
from mpsd.stop.stopper import Stopper
from mpsd.vault.arenas import Arenas


class Ports(Struct, frozen=True, kw_only=True):
    """Everything that a method may reach.

    find_process: None if no process has the pid; raises OSError if it cannot be read.  uid_of: the effective uid of the process
    with a pid, None if there is none; it never waits.  owner_of: the uid of a process; None if it has ended.
    namespaces_of: its pid namespaces, as processes.pid_namespaces() gives them.
    problems: why a client that starts now might not be served, in words; from mpsd's own state, without a wait.  warnings: what
    ails present clients and arenas alone.
    facts: further facts for `status`, such as the backend and the mode.
    started_at: seconds since the epoch.  fault_sources: each, and "works" or why it does not.  sentinels:
    whether domains get one, in words.  arenas, failover, keeper: None in a daemon that keeps no memory.  ends_at: while mpsd is
    stopping, the time at which it ends clients' remaining work.
    """

    leases: LeaseBook
    domains: DomainOperations
    board: Board
    stopper: Stopper
    faults: Incidents
    find_process: Callable[[int], ProcessId | None]
    uid_of: Callable[[int], int | None]
    owner_of: Callable[[ProcessId], int | None]
    namespaces_of: Callable[[int], tuple[int, ...]]
    is_stopping: Callable[[], bool]
    problems: Callable[[], Sequence[str]]
    warnings: Callable[[], Sequence[str]]
    started_at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    fault_sources: Callable[[], Mapping[str, str]] = dict
    sentinels: Callable[[], str] = lambda: "off"
    arenas: Arenas | None = None
    keeper: Callable[[], KeeperView | None] = lambda: None
    failover: ServiceRequests | None = None
    ends_at: Callable[[], float | None] = lambda: None
