"""Processes that cannot be read: with some kernels each user can keep mpsd from reading theirs (docs/decisions/029).

Nothing is known of them then, and they count as alive.  An error of such a read ended mpsd.
"""

import errno
import os
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.domains.directories import PID_FILE
from mpsd.domains.domain import Domain
from mpsd.domains.domain_view import view_of
from mpsd.domains.pool import Pool
from mpsd.domains.rules.log_lines import ServerExited, ServerFault
from mpsd.domains.rules.server_answers import living
from mpsd.domains.servers import ensure_server
from mpsd.domains.strangers import Strangers
from mpsd.domains.upkeep import Upkeep
from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.domains.vital_signs import look_now
from mpsd.errors import VendorFailed
from mpsd.host import peers, processes
from mpsd.host.process_reader import ProcessReader, Unanswered
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId
from mpsd.services.server_watch import Servers
from tests.inspecting import INSPECTOR

GPUS = ("GPU-a",)
SERVER, CLIENT = 1, os.getppid()


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(pid: int) -> bytes:
        raise Unanswered(errno.ETIMEDOUT, f"pid {pid} was not read: its reader waits")

    monkeypatch.setattr(processes.reader, "stat", wait)


def a_domain(state: DomainState = DomainState.READY) -> Domain:
    view = ServerView(SERVER, 1000, "ACTIVE", (CLIENT,), "default", GPUS)
    return Domain("default", 1, GPUS, None, 48, state=state, servers={SERVER: view})


def a_pool(domain: Domain) -> Pool:
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    pool.domains[domain.name] = domain
    return pool


def an_ended_process() -> ProcessId:
    with subprocess.Popen(["true"]) as ended:
        return ProcessId(ended.pid, 1)


def test_nothing_is_known_of_them() -> None:
    assert (processes.find(CLIENT), processes.lives(CLIENT)) == (None, True)


@pytest.mark.parametrize("state", [DomainState.FAULT, DomainState.CONTAINED])
async def test_their_domain_is_not_taken_for_deserted(state: DomainState) -> None:
    domain = a_domain(state)
    upkeep = Upkeep(a_pool(domain), 1.0, None)  # type: ignore[arg-type]
    assert upkeep._lives(domain)
    assert not upkeep._is_drained(domain, trio.current_time())
    assert living(domain.servers, processes.lives) == domain.servers


async def test_a_server_that_the_log_calls_gone_stays_known() -> None:
    domain = a_domain()
    domain.contexts[SERVER] = Counter([CLIENT])
    domain.hear(ServerExited(SERVER, 0))
    assert SERVER in domain.contexts


async def test_the_next_client_gets_the_server_that_was_ready() -> None:
    found = await ensure_server(a_domain(), 1000, is_multiuser=False, seconds=1.0)
    assert found.pid == SERVER


async def test_an_unread_stranger_is_reported_once_and_ended_when_it_can_be_read(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a domain that all users reach, a client past mpsd held its own /proc, and was neither reported nor ended."""
    domain = a_domain()
    domain.control = SimpleNamespace(is_exposed=True)  # type: ignore[assignment]
    assert domain.strangers == {CLIENT}
    events: list[str] = []
    ended: list[int] = []
    strangers = Strangers(a_pool(domain), lambda domain: True, lambda topic, facts: events.append(topic))

    async def terminate_client(domain: Domain, server_pid: int, client_pid: int) -> None:
        ended.append(client_pid)

    monkeypatch.setattr("mpsd.domains.strangers.terminate_client", terminate_client)

    async def look() -> None:
        await trio.sleep(1.1)
        domain.asked_at = trio.current_time()
        await strangers.look(domain)

    await look()
    assert events == []
    for _ in range(2):
        await look()
    assert (events, ended) == (["client.stranger"], [])
    monkeypatch.setattr(processes.reader, "stat", partial(ProcessReader.stat, processes.reader))
    for _ in range(2):
        await look()
    assert (events, ended) == (["client.stranger"], [CLIENT])


async def test_the_place_of_one_that_has_ended_is_free() -> None:
    """mpsd learns of an end once, by the pidfd, and then took the ended client for alive: its domain was full for ever."""
    domain = a_domain()
    pool = a_pool(domain)
    pool.store = SimpleNamespace(forget_member=lambda process: None)  # type: ignore[assignment]
    process = an_ended_process()
    domain.join(process, 1000)
    domain.attach(process)
    pool._watched.add(process)
    assert domain.occupancy == 2
    await pool._watch(process)
    assert (domain.occupancy, domain.channels) == (1, set()), "the client that the server lists"


async def test_a_server_of_members_is_not_taken_for_lost() -> None:
    servers = Servers(None, a_pool(a_domain()))  # type: ignore[arg-type]
    servers._watch(SERVER, "default", frozenset({CLIENT}))
    assert not servers._clients


async def test_nothing_ends_while_mpsd_has_no_descriptor_for_a_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Views, vital signs and the news of a log raised OSError then, which ended mpsd, or its watch over the log."""

    def full(*words: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes.reader, "text", full)
    monkeypatch.setattr(processes.reader, "children", full)
    domain = a_domain()
    domain.control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, INSPECTOR), tmp_path)
    domain.control.process = ProcessId(SERVER, 1)
    assert view_of(domain, Defaults()).state is DomainState.RECYCLING
    domain.control.pipe_directory.mkdir()
    (domain.control.pipe_directory / "control").touch()
    assert not look_now(domain)
    assert not domain.is_plausible(ServerFault(CLIENT))
    assert (processes.state(CLIENT), processes.has_thread_ended(CLIENT), processes.parent(CLIENT)) == ("?", False, None)


@pytest.mark.parametrize(("most", "is_found"), [(3, True), (10**9, False)], ids=["late", "never"])
async def test_a_daemon_that_has_started_may_be_unread_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int, is_found: bool
) -> None:
    """Its start failed, and mpsd's with it: any user can keep all processes of mpsd's user unread for 5 s."""
    looks = Counter[str]()

    def process_id(pid: int) -> ProcessId:
        looks["unread"] += 1
        if looks["unread"] < most:
            raise Unanswered(errno.EBUSY, "they are not read for 5 s")
        return ProcessId(pid, 1)

    async def launch(*_: object) -> tuple[int, bytes]:
        return 0, b""

    control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, INSPECTOR), tmp_path)
    daemon = ProcessId(SERVER, 1)
    monkeypatch.setattr(peers, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(peers, "_UNKNOWN_SECONDS", 20.0 if is_found else 0.1)
    monkeypatch.setattr(processes, "process_id", process_id)
    monkeypatch.setattr(control, "_launch", launch)
    monkeypatch.setattr(control, "_find", lambda: daemon if looks["unread"] >= most else None)
    if is_found:
        assert await control.start(None) == daemon
    else:
        with pytest.raises(VendorFailed, match="left no daemon behind"):
            await control.start(None)


async def test_a_daemon_that_has_started_is_looked_for_again_while_it_is_unread(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refuser's is of another user than mpsd, whose processes were read: it was taken for one that had not started."""
    control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, INSPECTOR), tmp_path, os.geteuid())
    control.pipe_directory.mkdir()
    (control.pipe_directory / PID_FILE).write_text(str(CLIENT))
    unread = [CLIENT] * 2

    def process_id(pid: int) -> ProcessId:
        if pid in unread:
            unread.pop()
            raise Unanswered(errno.EBUSY, "a user holds its directory")
        return ProcessId(pid, 1)

    monkeypatch.setattr(processes, "process_id", process_id)
    monkeypatch.setattr(control, "_find", lambda: None if unread else ProcessId(CLIENT, 1))
    assert await control._find_soon() == ProcessId(CLIENT, 1)
