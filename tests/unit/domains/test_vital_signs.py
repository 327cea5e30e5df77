"""What the processes of a domain show of it: a stopped one, above all a client for which its server waits."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mpsd.domains import vital_signs
from mpsd.domains.domain import Domain
from mpsd.domains.domain_view import view_of
from mpsd.domains.frozen_clients import FrozenClients
from mpsd.domains.vital_signs import Signs, look
from mpsd.host import processes
from mpsd.model.domain import Defaults, DomainState
from mpsd.model.process import ProcessId
from tests.inspecting import INSPECTOR
from tests.unit.domains.test_ending_strangers import Vendor
from tests.unit.vault.machine import until


@pytest.fixture
def pid() -> Iterator[int]:
    """Return the pid of a process that is stopped."""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process.pid
        process.kill()


def test_a_stopped_client_matters_where_its_server_does_not_answer(pid: int, tmp_path: Path) -> None:
    signs = Signs((), str(tmp_path), (os.getpid(), pid), is_answering=False)
    found = look(signs)
    assert (found.clients, "is stopped (SIGSTOP), and its server waits for it" in found.why) == ((pid,), True)
    assert str(pid) not in found.why, "every user may read it"


def test_where_the_server_answers_it_hinders_nothing(pid: int, tmp_path: Path) -> None:
    found = look(Signs((), str(tmp_path), (pid,)))
    assert (found.clients, found.why) == ((pid,), "")


def test_a_stopped_process_with_the_pid_of_an_ended_client_is_none(pid: int, tmp_path: Path) -> None:
    """The domain was blocked by the user of that process, who may have none there."""
    ended = ProcessId(pid, 7)
    assert look(Signs((), str(tmp_path), (pid,), is_answering=False, admitted={pid: ended})).clients == ()
    admitted = {pid: processes.process_id(pid)}
    assert look(Signs((), str(tmp_path), (pid,), is_answering=False, admitted=admitted)).clients == (pid,)


def test_a_process_that_is_not_known_is_not_reported(pid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some kernels its user prevents the read; the report names a user, and closes domains to that user."""
    monkeypatch.setattr(processes, "find", lambda pid: None)
    assert look(Signs((), str(tmp_path), (pid,), is_answering=False)).clients == ()


def test_a_stopped_server_is_the_better_reason(pid: int, tmp_path: Path) -> None:
    found = look(Signs((("vendor server", pid),), str(tmp_path), (pid,), is_answering=False))
    assert found.clients == ()
    assert found.why == f"its vendor server, pid {pid}, is stopped (SIGSTOP): continue it by `kill -CONT {pid}`"


@pytest.mark.parametrize(
    ("uids", "blamed"), [((1000, 1001), 1000), ((1000, 2000), None), ((1000, None), None), ((None, None), None)]
)
async def test_a_domain_counts_against_a_user_only_if_no_other_has_stopped_clients_there(
    monkeypatch: pytest.MonkeyPatch, uids: tuple[int | None, ...], blamed: int | None
) -> None:
    """The first was blamed, also for the work that a client of another user had stopped."""
    domain = Domain("default", 1, ("GPU-a",), Vendor(), 48, state=DomainState.READY)  # type: ignore[arg-type]
    monkeypatch.setattr(vital_signs, "_known_user", lambda domain, pid: uids[pid - 7])
    reported: list[object] = []
    read: list[int] = []
    monkeypatch.setattr(processes, "sole_uid", lambda pid: read.append(pid) or {7: 1000}.get(pid))
    for turn in range(1, 3):
        found = vital_signs.Unresponsive("a client is stopped", (7, 8))
        vital_signs._take(domain, found, lambda topic, facts: reported.append(facts), lambda uid: uid // 1000)
        assert len(read) == turn * (None in uids), "a status takes milliseconds of the event loop"
    shown = view_of(domain, Defaults())
    assert (shown.is_blocked, shown.blocked_uid) == (True, blamed)
    assert reported == [{"pid": 7, "uid": 1000, "domain": "default"}]


async def test_servers_that_are_not_listed_are_looked_for_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all domains, twice a second: on the event loop it took 40 us and more each."""
    loop, looked = threading.get_ident(), list[int]()

    def children(pid: int) -> list[int]:
        looked.append(threading.get_ident())
        return []

    monkeypatch.setattr(processes, "children", children)
    domain = Domain("default", 1, ("GPU-a",), Vendor(), 48, state=DomainState.READY)  # type: ignore[arg-type]
    monkeypatch.setattr(Vendor, "socket_path", lambda self, name: "/", raising=False)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            ways = (lambda: None, lambda *words: None, FrozenClients(INSPECTOR, None), lambda uid: uid)
            nursery.start_soon(vital_signs.watch_vital_signs, {"default": domain}, *ways)
            await until(lambda: bool(looked))
            nursery.cancel_scope.cancel()
    assert loop not in looked
