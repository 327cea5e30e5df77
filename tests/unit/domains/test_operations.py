"""Clients of domains, as the socket lists them."""

import os
from typing import Any

import pytest

from mpsd.domains.domain import Domain
from mpsd.domains.operations import DomainOperations
from mpsd.domains.pool import Pool
from mpsd.host import processes
from mpsd.model.client import UNKNOWN
from mpsd.model.domain import ServerView
from mpsd.model.process import ProcessId

MANY = 4096
SERVER = 999_999_901  # no process
THIS = processes.process_id(os.getpid())


def operations(members: list[ProcessId], strangers: tuple[int, ...] = ()) -> DomainOperations:
    """Over one domain with these members, of user 1000 to admission, and clients that only its server knows."""
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = Domain("d1", 1, (), None, 48)  # type: ignore[arg-type]
    domain.members = dict.fromkeys(members, 0.0)
    pids = (*(process.pid for process in members), *strangers)
    domain.servers = {SERVER: ServerView(SERVER, 1000, "ACTIVE", pids, "d1")}
    pool.domains["d1"] = domain
    known: Any = dict.fromkeys(members, 1000)
    return DomainOperations(pool, None, None, lambda process: UNKNOWN, known.get)  # type: ignore[arg-type]


def test_clients_that_admission_knows_are_listed_without_a_look_at_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 took 154 ms of the event loop."""
    for name in ("owner", "process_id"):
        monkeypatch.setattr(processes, name, lambda pid: pytest.fail(f"a look at process {pid}"))
    pids = range(1, MANY + 1)
    views = operations([ProcessId(pid, 1) for pid in pids]).clients()
    assert [(view.process.pid, view.uid, view.server_pid) for view in views] == [(pid, 1000, SERVER) for pid in pids]


def test_one_is_found_by_its_pid() -> None:
    asked = operations([ProcessId(pid, 1) for pid in range(1, 10)])
    assert [view.process for view in asked.clients(7)] == [ProcessId(7, 1)]
    assert asked.clients(99) == []


def test_a_client_that_only_a_server_knows_is_looked_at() -> None:
    other = processes.process_id(os.getppid())
    assert other is not None
    asked = operations([ProcessId(7, 1)], strangers=(other.pid,))
    [view] = asked.clients(other.pid)
    assert (view.process, view.uid, view.server_pid) == (other, os.geteuid(), SERVER)
    assert [view.process.pid for view in asked.clients()] == [7, other.pid]
