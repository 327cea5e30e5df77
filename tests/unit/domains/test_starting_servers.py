"""When a server counts as started: until then its vendor daemon must not be asked about it."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
import trio
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.rules.log_lines import ContextOpened, ServerReady
from mpsd.domains.rules.server_answers import LIST
from mpsd.domains.servers import ensure_server, make_way
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.host.process_exit import wait_ended
from mpsd.model.domain import DomainState, ServerView

GPUS = ("GPU-a",)


class Vendor:
    """A vendor daemon that answers the first question only when the test lets it."""

    is_exposed = False
    process = None
    silence_seconds = 60.0

    def __init__(self) -> None:
        self.told: list[str] = []
        self.listed = ""
        self.sessions = 0
        self.is_asked, self.may_answer = trio.Event(), trio.Event()

    async def command(self, line: str, seconds: float | None = None) -> str:
        self.told.append(line)
        return ""

    async def commands(self, lines: tuple[str, ...]) -> str:
        listed = self.listed
        self.sessions += 1
        self.is_asked.set()
        await self.may_answer.wait()
        answers = {LIST: listed, "get_server_status": "ACTIVE\n", "get_client_list": "77\n"}
        return "".join(answers[line.split()[0]] for line in lines)


@pytest.fixture
def server() -> Iterator[int]:
    """Yield the pid of a living process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


async def test_a_server_that_gets_ready_during_a_question_is_asked_about_at_the_next(
    server: int, autojump_clock: object
) -> None:
    vendor = Vendor()
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.mark_stale()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(domain.refresh)
        await vendor.is_asked.wait()
        vendor.listed = f"{server}\n"  # after the daemon has made its answer
        domain.hear(ServerReady(server))
        vendor.may_answer.set()
    assert domain.servers == {}
    await domain.refresh()
    assert {(each.pid, each.status, each.client_pids) for each in domain.servers.values()} == {(server, "ACTIVE", (77,))}
    assert processes.is_alive(processes.process_id(server))  # type: ignore[arg-type]


async def test_a_server_that_is_listed_after_its_line_is_asked_about_at_once(server: int) -> None:
    """The vendor daemon logs that it is ready before the list has it."""
    vendor = Vendor()
    vendor.may_answer.set()
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.hear(ServerReady(server))
    assert await domain.fresh_servers() == []
    vendor.listed = f"{server}\n"
    domain.mark_stale()
    assert [(each.status, each.client_pids) for each in await domain.fresh_servers()] == [("ACTIVE", (77,))]


async def test_what_is_known_of_a_server_is_forgotten_with_it(server: int) -> None:
    vendor = Vendor()
    vendor.may_answer.set()
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.hear(ServerReady(server))
    domain.hear(ContextOpened(server, 77))
    await domain.refresh()
    assert domain.contexts
    server_process = processes.process_id(server)
    assert server_process
    os.kill(server, signal.SIGKILL)
    domain.mark_stale()
    await wait_ended(server_process)
    await domain.refresh()
    assert domain.contexts == {}


async def test_a_server_whose_line_was_missed_is_asked_about_when_it_must_have_started(
    server: int, autojump_clock: object
) -> None:
    """No other news comes: a client that runs would be in no list for ever."""
    vendor = Vendor()
    vendor.may_answer.set()
    vendor.listed = f"{server}\n"
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.mark_stale()
    assert [each.status for each in await domain.fresh_servers()] == ["INITIALIZING"]
    for _ in range(10):  # as at each turn of a client that waits
        assert [each.status for each in await domain.fresh_servers()] == ["INITIALIZING"]
    assert vendor.sessions == 1
    await trio.sleep(16)
    assert [each.status for each in await domain.fresh_servers()] == ["ACTIVE"]


async def test_one_session_asks_for_all_while_the_only_server_stays_the_same(server: int) -> None:
    """Three sessions, each a process of the vendor's program, were a third of mpsd's processor time while many clients came."""
    vendor = Vendor()
    vendor.may_answer.set()
    vendor.listed = f"{server}\n"
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.hear(ServerReady(server))
    await domain.refresh()
    vendor.sessions = 0
    domain.mark_stale()
    await domain.refresh()
    assert vendor.sessions == 1
    assert {(each.pid, each.status, each.client_pids) for each in domain.servers.values()} == {(server, "ACTIVE", (77,))}


async def test_a_server_that_is_not_its_users_process_yet_is_not_told_to_go(server: int, autojump_clock: object) -> None:
    """It is root's until then.  mpsd ended a server that it had just started: on a busy machine a client hung."""
    vendor = Vendor()
    vendor.may_answer.set()
    vendor.listed = f"{server}\n"
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.mark_stale()
    user = os.geteuid() + 1000
    with pytest.raises(VendorFailed):
        await ensure_server(domain, user, is_multiuser=False, seconds=1.0)
    assert vendor.told == []
    domain.hear(ServerReady(server))
    await make_way(domain, user, is_multiuser=False)
    assert vendor.told == []
    assert domain.client_pids, "it is not idle"
    domain.servers[server] = replace(domain.servers[server], client_pids=())
    domain.news = trio.Event()
    await make_way(domain, user, is_multiuser=False)
    assert vendor.told == [f"shutdown_server {server}"]


async def test_a_server_that_stays_is_forced_to_go_where_no_process_has_a_channel(server: int, autojump_clock: object) -> None:
    vendor = Vendor()
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.servers = {server: ServerView(server, 1000, "ACTIVE", (), "default", GPUS)}
    alive = processes.process_id(os.getpid())
    domain.attach(alive)
    asked_at: dict[int, float] = {}
    for _ in range(3):
        await make_way(domain, 1001, is_multiuser=False, asked_at=asked_at)
        await trio.sleep(1.0)
    assert vendor.told == [f"shutdown_server {server}"]
    domain.channels.clear()
    for _ in range(3):
        await make_way(domain, 1001, is_multiuser=False, asked_at=asked_at)
        await trio.sleep(1.0)
    assert vendor.told == [f"shutdown_server {server}", f"shutdown_server {server} -f"]


async def test_a_server_that_starts_for_a_client_of_another_user_is_not_told_to_go(server: int, autojump_clock: object) -> None:
    """On a GPU in EXCLUSIVE_PROCESS mode: as it took over half a second to start, it was forced to go."""
    vendor = Vendor()
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.servers = {server: ServerView(server, 1000, "INITIALIZING", (), "default", GPUS)}
    comes = processes.process_id(os.getpid())
    domain.join(comes, 1000)
    arrival = domain.guard.expect(comes.pid)
    asked_at: dict[int, float] = {}
    for _ in range(3):
        await make_way(domain, 1001, is_multiuser=False, asked_at=asked_at)
        await trio.sleep(1.0)
    assert not vendor.told
    domain.guard.forget_arrival(comes.pid, arrival)
    for _ in range(2):
        domain.news = trio.Event()
        await make_way(domain, 1001, is_multiuser=False, asked_at=asked_at)
        await trio.sleep(1.0)
    assert vendor.told == [f"shutdown_server {server}", f"shutdown_server {server} -f"]
