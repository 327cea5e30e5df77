"""Errors of mpsd itself, as without a free descriptor, close no client's connection: CUDA would run without MPS."""

import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel
import trio.testing

from mpsd.host import peers, processes
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay import message
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.conversation import Conversations, RelaySettings
from mpsd.relay.forwarding import Forwarding, LinkSide
from mpsd.relay.hang_ups import HangUps
from mpsd.relay.offences import Offences
from mpsd.relay.refusals import Refusals
from mpsd.relay.server import Relay, _identify
from mpsd.relay.vendor_connection import connect
from tests.running import running
from tests.unit.relay.test_backlog import descriptors_all_in_use
from tests.unit.relay.test_conversation import HopefulPool, NobodyApart, OpenAdmission
from tests.unit.relay.test_forwarding import PATIENCE, pair, well
from tests.unit.relay.test_linked_again import accepted
from tests.unit.relay.test_overdue import VendorDaemon
from tests.unit.relay.test_wishes import waiting

LIVING = SimpleNamespace(is_alive=lambda: True)


async def test_a_connection_to_a_domain_waits_for_a_free_descriptor(tmp_path: Path) -> None:
    """mpsd closed the client's connection then."""
    found: list[socket.socket | None] = []
    has_ended = trio.Event()

    async def reach() -> None:
        found.append(await connect(str(tmp_path / "control"), LIVING))
        has_ended.set()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        before = len(os.listdir("/proc/self/fd"))
        async with trio.open_nursery() as nursery:
            with descriptors_all_in_use():
                nursery.start_soon(reach)
                await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(30):
                await has_ended.wait()
        assert found[0] is not None
        assert len(os.listdir("/proc/self/fd")) == before + 1, "a failed attempt leaves none behind"
        found[0].close()


def one_caller(ours: socket.socket, refusals: object) -> tuple[Relay, ClientConnection]:
    caller = ClientConnection(1, "control", ours, Credentials(1, 0, 0), None, 0.0, Forwarding(ours, False))
    caller.places[0] += 1
    shared = SimpleNamespace(
        refusals=refusals, keeper=SimpleNamespace(drop=lambda name: None),
        progress=SimpleNamespace(end=lambda track: None), open={None: 1}, offences=Offences(),
    )  # fmt: skip
    return Relay(shared, callers={1: caller}), caller  # type: ignore[arg-type]


@pytest.mark.parametrize("has_gone", [False, True])
async def test_an_error_of_mpsds_own_holds_the_client(has_gone: bool) -> None:
    """The connection was closed for any error of the operating system."""
    held: list[str] = []
    ours, theirs = pair()

    async def hold(caller: ClientConnection, domain: object, why: str) -> None:
        held.append(why)
        theirs.close()

    async def fail() -> None:
        raise OSError(24, "Too many open files")

    relay, caller = one_caller(ours, SimpleNamespace(hold=hold))
    if has_gone:
        theirs.close()
    await relay._converse(caller, fail())
    assert held == ([] if has_gone else ["mpsd failed: Too many open files"])
    for end in relay.backlog._ends:
        end.close()


async def test_where_no_client_can_be_watched_any_more_mpsd_goes_on(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """epoll_ctl(2) fails with ENOSPC at /proc/sys/fs/epoll/max_user_watches: the error in the hold ended mpsd."""
    ours, theirs = pair()
    tried = []

    async def wait_readable(sock: object) -> None:
        tried.append(sock)
        raise OSError(28, "No space left on device")

    async def fail() -> None:
        await wait_readable(ours)

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    relay, caller = one_caller(ours, Refusals(None, 1.0))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay._converse, caller, fail())
        await trio.sleep(60)
        assert relay.callers, "it is held"
        assert len(tried) < 100
        theirs.close()
    assert not relay.callers
    for end in relay.backlog._ends:
        end.close()


def test_a_new_client_that_cannot_be_watched_does_not_end_mpsd() -> None:
    """The error of epoll_ctl(2) reached the task that accepts, and ended mpsd at each start and each new connection."""

    def register(*of: object) -> None:
        raise OSError(28, "No space left on device")

    hang_ups = HangUps()
    hang_ups._epoll = SimpleNamespace(register=register, unregister=register)  # type: ignore[assignment]
    ours, theirs = pair()
    with ours, theirs:
        hang_ups.watch(ours, lambda: None)
        hang_ups.forget(ours)


async def test_a_restarted_mpsd_holds_a_client_that_it_cannot_identify() -> None:
    """It placed one whose process had ended and whose connection another had: without a lease, and without its limits."""
    held: list[str] = []
    ours, theirs = pair()

    async def is_known_later(caller: ClientConnection) -> bool:
        held.append(caller.why_not)
        return False

    shared = Conversations(
        SimpleNamespace(domains={}), None, None, None, None, SimpleNamespace(is_known_later=is_known_later)  # type: ignore[arg-type]
    )
    relay, caller = one_caller(ours, None)
    relay.conversations, caller.why_not = shared, "the process that connected has ended"
    with ours, theirs:
        await relay._go_on(caller, "", None)
    assert held == ["the process that connected has ended"]
    for end in relay.backlog._ends:
        end.close()


@pytest.mark.parametrize("has_gone", [False, True])
async def test_a_restarted_mpsd_goes_on_with_a_client_that_it_cannot_read_just_now(
    monkeypatch: pytest.MonkeyPatch, has_gone: bool
) -> None:
    """It held such a client for good, whose handshake an earlier mpsd had begun: it can lack a descriptor at its start."""
    resumed: list[ClientConnection] = []
    held: list[str] = []

    async def is_known_later(caller: ClientConnection) -> bool:
        held.append(caller.why_not)
        return False

    async def resume(_: Conversations, caller: ClientConnection, *of: object) -> None:
        resumed.append(caller)

    monkeypatch.setattr(Conversations, "resume", resume)
    (ours, theirs), (backend, daemon) = pair(), pair()
    relay, caller = one_caller(ours, None)
    pool = SimpleNamespace(domains={"d2": SimpleNamespace(name="d2")})
    keeper, refusals = SimpleNamespace(drop=lambda name: None), SimpleNamespace(is_known_later=is_known_later)
    relay.conversations = Conversations(pool, keeper, None, None, None, refusals)  # type: ignore[arg-type]
    caller.why_not, caller.has_gone = "mpsd cannot see who it is: Too many open files", has_gone
    with ours, theirs, backend, daemon:
        await relay._go_on(caller, "d2", backend)
    assert (resumed, len(held)) == (([], 1) if has_gone else ([caller], 0))
    for end in relay.backlog._ends:
        end.close()


@pytest.mark.parametrize("knows_pidfds", [True, False])
def test_an_end_is_known_also_on_an_older_kernel(monkeypatch: pytest.MonkeyPatch, knows_pidfds: bool) -> None:
    """Linux before 6.5 has no SO_PEERPIDFD: a handshake of an ended process was continued there after a restart."""
    if not knows_pidfds:
        monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    ours, theirs = pair()
    with ours, theirs:
        process, why_not, has_gone = _identify(ours, Credentials(4_194_305, 0, 0))
    assert (process, bool(why_not), has_gone) == (None, True, True)


async def test_a_daemon_that_dies_with_unread_messages_is_no_error_of_its_client() -> None:
    """The kernel then fails the next send with ECONNRESET, not EPIPE, if the end has not been read yet."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, False)
    link_domain.send(b"unread")
    domain.close()
    client.send(b"next")
    with trio.CancelScope() as scope:
        await link._copy_from_client(link_domain, scope)
    assert link._trouble is None
    assert not scope.cancel_called
    assert link_client.recv(64) == b"next", "it stays for another domain"
    for end in (client, link_client, link_domain):
        end.close()


async def test_an_error_while_a_client_is_answered_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as the client's end, and so closed the connection."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, False)

    async def fail(*args: object, **kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mpsd.relay.forwarding.send", fail)
    domain.send(b"answer")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        await link.run(link_domain, PATIENCE, well)
    client.close()
    assert await link.run(link_domain, PATIENCE, well) is LinkSide.CLIENT
    for end in (link_client, link_domain, domain):
        end.close()


@pytest.mark.parametrize("at", ["admit", "place"])
async def test_such_an_error_is_known_also_where_the_client_waits_for_a_place(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """It came as a group of exceptions, which is no OSError, so mpsd held the client for ever instead of trying again."""

    async def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with waiting(lambda pool: NobodyApart()) as (pool, assignment, caller):
        monkeypatch.setattr(pool if at == "place" else assignment.admission, at, fail)
        with pytest.raises(OSError, match="Too many open files"):
            await assignment.find_place(caller)


async def test_a_client_that_mpsd_could_not_watch_is_served_once_it_can(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was held for ever, also once mpsd's uid had epoll entries again (ENOSPC at fs.epoll.max_user_watches)."""
    pool = HopefulPool()
    domain = pool.domain
    domain.control = VendorDaemon(str(tmp_path / "control"))
    keeper = SimpleNamespace(hold=lambda name, end: None, drop=lambda name: None)
    settings = RelaySettings(max_connections=1, turn_seconds=0.5, silent_seconds=1, may_impersonate=False)
    assignment = Assignment(pool, OpenAdmission(), NobodyApart(), is_per_gpu=False, reader=None)
    assignment.may_place.set()
    shared = Conversations(pool, keeper, None, settings, assignment, refusals=None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused: list[float] = []
    wait_readable = trio.lowlevel.wait_readable

    async def watch(end: object) -> None:
        if end is ours and len(refused) < 3:
            refused.append(trio.current_time())
            raise OSError(errno.ENOSPC, "No space left on device")
        await wait_readable(end)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.lowlevel, "wait_readable", watch)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        for end in (ours, theirs, listener):
            end.setblocking(False)
        listener.bind(domain.control.path)
        listener.listen()
        caller = ClientConnection(1, "control", ours, Credentials(1, 1, 1), None, 0.0, Forwarding(ours, False, share=1))
        theirs.send(b"hello")
        async with running(shared.run, caller):
            for _ in range(3):
                with await accepted(listener) as failed:
                    assert await message.receive(failed) is None
            with await accepted(listener) as backend:
                assert (await message.receive(backend)).data == b"hello"
                backend.send(b"answer")
                assert (await message.receive(theirs)).data == b"answer"
        assert refused[2] - refused[0] >= 2, "it does not try all the time"


@pytest.mark.parametrize("lives", [True, False])
async def test_a_client_that_mpsd_could_not_read_is_served_once_it_can(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """It was held for ever where another process of its user kept the reader waiting for a moment (decision 029)."""
    process, asked_at = ProcessId(os.getpid(), 7), list[float]()

    def process_id(_: int) -> ProcessId | None:
        asked_at.append(trio.current_time())
        if len(asked_at) < 7:
            raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")
        return process if lives else None

    monkeypatch.setattr(processes, "process_id", process_id)
    served: list[ProcessId | None] = []

    async def once(_: Conversations, caller: ClientConnection) -> bool:
        served.append(caller.process)
        assert caller.link.process == caller.process
        return True

    monkeypatch.setattr(Conversations, "_once", once)
    ours, theirs = pair()
    caller = ClientConnection(1, "control", ours, Credentials(1, 0, 0), None, 0.0, Forwarding(ours, False))
    shared = Conversations(None, None, None, None, None, Refusals(None, 1.0))  # type: ignore[arg-type]
    caller.why_not, shared.open[None] = "mpsd cannot see who it is", 1
    with ours, theirs:
        async with running(shared.run, caller):
            await trio.sleep(60)
            assert served == ([process] if lives else [])
            assert +shared.open == ({process: 1} if lives else {None: 1})
            assert len(asked_at) == 7
            assert asked_at[-1] - asked_at[0] >= 5, "it does not try all the time"
