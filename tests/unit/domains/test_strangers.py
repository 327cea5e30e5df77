"""Clients that mpsd admitted, clients that the server lists, and the log lines that concern a domain."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.log_follower import is_of_file
from mpsd.domains.rules.line_alarm import LINE_SECONDS
from mpsd.domains.rules.log_lines import (
    ClientArrived,
    ContextOpened,
    News,
    ServerExited,
    ServerFault,
    ServerReady,
    ServerStarting,
    parse_line,
    read_news,
)
from mpsd.host import processes
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.process import ProcessId

GPUS = ("GPU-a",)
SERVER = 999_999_901  # no process


class Vendor:
    """As far as a domain looks at its vendor daemon."""

    def __init__(self, is_exposed: bool = False) -> None:
        self.is_exposed = is_exposed
        self.process: ProcessId | None = processes.process_id(os.getpid())


def domain_with(*clients: int, is_exposed: bool = False) -> Domain:
    view = ServerView(SERVER, 0, "ACTIVE", clients, "default", GPUS)
    return Domain("default", 1, GPUS, Vendor(is_exposed), 48, state=DomainState.READY, servers={SERVER: view})  # type: ignore[arg-type]


def process_of(child: "subprocess.Popen[bytes]") -> ProcessId:
    found = processes.process_id(child.pid)
    assert found is not None
    return found


async def test_a_listed_client_is_a_stranger_unless_it_was_let_in(child: "subprocess.Popen[bytes]") -> None:
    domain = domain_with(child.pid, os.getpid(), 999_999_902)
    assert domain.strangers == {child.pid, 999_999_902}  # mpsd's own pid stands for processes that have none here
    domain.admit(process_of(child))
    assert domain.strangers == {999_999_902}


@pytest.fixture
def first_of_its_namespace() -> Iterator[int]:
    """Its pid here; inside it has the pid 1."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; read line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        if outer.stdout.readline() != b"ready\n":
            pytest.skip("no pid namespaces here")
        yield int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        outer.communicate()


@pytest.mark.root
async def test_a_client_in_a_pid_namespace_covers_no_process_by_the_pid_it_has_inside(first_of_its_namespace: int) -> None:
    process = processes.process_id(first_of_its_namespace)
    assert process is not None
    domain = domain_with(process.pid, 1)
    domain.admit(process)
    assert domain.strangers == {1}


async def test_one_that_was_let_in_stays_known_until_it_is_listed_no_more(child: "subprocess.Popen[bytes]") -> None:
    """A list may name for a while who has ended, and another process may have the pid by then."""
    domain = domain_with(child.pid)
    domain.admit(process_of(child))
    child.kill()
    child.wait()
    domain._believe(domain.servers, trio.current_time())
    assert domain.strangers == frozenset()
    domain._believe({SERVER: ServerView(SERVER, 0, "ACTIVE", (), "default", GPUS)}, trio.current_time())
    assert domain.admitted == {}


async def test_after_a_restart_who_is_listed_was_let_in_by_the_earlier_mpsd(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    domain = domain_with(child.pid)
    domain.adopts_until = trio.current_time() + 3.0
    domain._believe(domain.servers, trio.current_time())
    assert domain.strangers == frozenset()
    slow = domain_with(child.pid)
    slow.is_adopted = True  # as long as its vendor daemon has not answered
    slow._believe(slow.servers, trio.current_time())
    assert slow.strangers == frozenset()
    late = domain_with(child.pid)
    late.adopts_until = trio.current_time() + 3.0
    await trio.sleep(3.1)
    late._believe(late.servers, trio.current_time())
    assert late.strangers == {child.pid}


async def test_after_a_restart_a_later_process_is_no_client_of_the_earlier_mpsd(child: "subprocess.Popen[bytes]") -> None:
    """It has the pid of an ended client that a server lists still: mpsd took it, of any user, for that one."""
    domain = domain_with(child.pid)
    domain.made_ticks = process_of(child).start_time - 1
    domain.adopts_until = trio.current_time() + 3.0
    domain._believe(domain.servers, trio.current_time())
    assert domain.strangers == {child.pid}


async def test_after_a_restart_a_listed_client_may_hide_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With some kernels a user can keep mpsd from reading about a process of theirs; once that ended the daemon."""

    def refuse(pid: int) -> bytes | None:
        raise TimeoutError(errno.ETIMEDOUT, "it does not answer")

    domain = domain_with(SERVER + 1)
    monkeypatch.setattr(processes, "_stat", refuse)
    domain.adopts_until = trio.current_time() + 3.0
    domain._believe(domain.servers, trio.current_time())
    assert domain.strangers == {SERVER + 1}


@pytest.mark.parametrize("news", [ServerStarting, ServerReady, ServerFault, ContextOpened, ClientArrived])
def test_a_line_is_about_a_server_that_is_listed_or_a_child_of_the_vendor_daemon(
    child: "subprocess.Popen[bytes]", news: type
) -> None:
    """Else anybody's process could be named: as one that the patched module is to spare, for one."""

    def line(pid: int) -> News:
        return news(pid) if news in (ServerReady, ServerFault) else news(pid, 1)  # type: ignore[no-any-return]

    domain = domain_with()
    assert [domain.is_plausible(line(pid)) for pid in (SERVER, child.pid, 1, os.getppid())] == [True, True, False, False]
    assert domain.is_plausible(ServerExited(1, 0))


def test_a_line_is_believed_about_a_new_server_that_its_user_keeps_mpsd_from_reading(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpsd dropped its lines, and took it for one that is starting for 15 s."""
    if child.pid not in processes.children(os.getpid()):
        pytest.skip("this kernel does not show the children of a process")
    monkeypatch.setattr(processes, "parent", lambda pid: None)
    domain = domain_with()
    assert [domain.is_plausible(ServerReady(pid)) for pid in (child.pid, 1)] == [True, False]


def test_lines_about_clients_that_do_not_exist_take_bounded_memory() -> None:
    """Where every user can write to the log, each line named another pid, and mpsd kept them all."""
    domain = domain_with()
    for pid in range(10_000):
        domain.hear(ContextOpened(SERVER, pid))
    assert len(domain.contexts[SERVER]) < 1000


async def test_a_line_about_a_fault_closes_a_domain_for_a_moment_and_does_not_fault_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    domain = domain_with()
    domain.hear(ServerFault(SERVER))
    assert domain.suspect_until == pytest.approx(trio.current_time() + LINE_SECONDS)
    await trio.sleep(LINE_SECONDS + 0.1)
    domain.hear(ServerFault(SERVER))
    assert domain.suspect_until < trio.current_time()
    assert domain.state is DomainState.READY


@pytest.mark.parametrize("is_exposed", [False, True])
async def test_an_arrival_is_believed_by_its_line_where_others_cannot_write_one(is_exposed: bool) -> None:
    """Where they can, the list has to have the client: else a window would open for the next too early."""
    domain = domain_with(is_exposed=is_exposed)
    arrival = domain.guard.expect(101)
    domain.hear(ClientArrived(SERVER, 101))
    assert await arrival.settled(0.0) is not is_exposed


@pytest.mark.parametrize(("name", "counts"), [("control.log", True), ("server.log", False)])
def test_what_the_control_daemon_says_is_in_its_own_log(name: str, counts: bool) -> None:
    """Servers, and who reaches the FIFO, write into the other."""
    line = parse_line("[2026-11-20 12:30:15.126 Control   925] Starting new server 930 for user 0")
    assert line is not None
    assert isinstance(read_news(line), ServerStarting)
    assert is_of_file(line, name) is counts
