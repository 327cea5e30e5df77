"""A client that is refused: told as soon as it listens, and held only where nothing can tell it."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.errors import Refused
from mpsd.host.processes import find
from mpsd.model.lease import Refusal
from mpsd.model.process import Credentials
from mpsd.relay import refusals, vendor_connection
from mpsd.relay.forwarding import LinkSide
from mpsd.relay.refusals import Refusals


class Link:
    """Runs to the given ends, one after the other."""

    def __init__(self, *ends: LinkSide, awaits_domain: bool = False) -> None:
        self.ends, self.awaits_domain = list(ends), awaits_domain
        self.transcript: list[bytes] | None = []
        self.share = 1000

    async def run(self, *_: object) -> LinkSide:
        return self.ends.pop(0)

    def no_way_back(self) -> None:
        self.transcript = None


class Refuser:
    def __init__(self, is_there: bool, directory: str = "/nowhere") -> None:
        self.is_there, self.directory = is_there, directory

    def is_alive(self) -> bool:
        return self.is_there

    async def open(self) -> str | None:
        return self.directory if self.is_there else None


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(path: str, refuser: Refuser) -> socket.socket:
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    monkeypatch.setattr(refusals, "connect", connect)


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(("awaits_domain", "waited"), [(False, 60.0), (True, 1.0)], ids=["client", "daemon"])
async def test_who_is_slow_once_is_told_later(autojump_clock: object, awaits_domain: bool, waited: float) -> None:
    """In a crowd a client got no processor for half a second; then mpsd held it for as long as it lived."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    link = Link(LinkSide.SLOW_CLIENT, LinkSide.CLIENT, awaits_domain=awaits_domain)
    caller = SimpleNamespace(connection=ours, link=link, door="control", credentials=Credentials(1, 1000, 1000))
    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Refusals(Refuser(True), 0.5).tell, caller, "it has no lease")
            began = trio.current_time()
            if not awaits_domain:
                await trio.sleep(60.0)
                theirs.send(b"here I am")
        assert trio.current_time() - began == waited
    assert not link.ends
    assert link.transcript is not None, "it is not held"


async def test_without_a_refusing_daemon_it_is_held_until_it_ends(autojump_clock: object) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    link = Link()
    caller = SimpleNamespace(connection=ours, link=link, door="control", credentials=Credentials(1, 1000, 1000))
    with ours:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Refusals(Refuser(False), 0.5).tell, caller, "it has no lease")
            await trio.sleep(60.0)
            assert nursery.child_tasks
            theirs.close()
    assert link.transcript is None


@pytest.mark.parametrize("is_its_users", [True, False])
async def test_only_a_process_of_the_user_who_connected_is_killed(
    autojump_clock: object, child: "subprocess.Popen[bytes]", is_its_users: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may run a program of another user (setuid) by the time mpsd refuses it; that one is held.

    Its status, of 8 ms and more, is not read: thousands are refused at one moment.
    """
    monkeypatch.setattr("mpsd.host.processes._status", lambda pid: pytest.fail("its status was read"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    link, uid = Link(), os.geteuid() if is_its_users else os.geteuid() + 1
    refusal, who = Refused(Refusal.END, "it has no lease"), Credentials(child.pid, uid, uid)
    caller = SimpleNamespace(connection=ours, link=link, door="control", credentials=who, process=find(child.pid))
    with ours, theirs:
        with trio.move_on_after(1.0):
            await Refusals(Refuser(True), 0.5).turn_away(caller, refusal)  # type: ignore[arg-type]
        assert (link.transcript is None) is not is_its_users, "it is held"
    assert (child.wait(10) == -signal.SIGKILL) if is_its_users else (child.poll() is None)


async def test_who_speaks_on_and_on_keeps_the_refusing_daemon_for_a_moment(autojump_clock: object) -> None:
    class Talker(Link):
        async def run(self, *_: object) -> LinkSide:
            return await trio.sleep_forever()

    refusing, began = Refusals(Refuser(True), 0.5), trio.current_time()
    talker, other = (
        SimpleNamespace(link=link, door="control", credentials=Credentials(1, 1000, 1000))
        for link in (Talker(), Link(LinkSide.CLIENT))
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refusing.try_to_tell, talker, "it has no lease")
        await trio.testing.wait_all_tasks_blocked()
        assert await refusing.try_to_tell(other, "it has no lease")
    assert trio.current_time() - began == pytest.approx(5.0)


async def test_a_refusing_daemon_that_accepts_no_one_has_no_client_for_longer_than_a_turn(
    autojump_clock: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client waited for room in its queue for as long as the daemon lived, and with it all that were to be refused."""
    monkeypatch.setattr(refusals, "connect", vendor_connection.connect)
    caller = SimpleNamespace(link=Link(), door="control", credentials=Credentials(1, 1000, 1000))
    refusing, path = Refusals(Refuser(True, str(tmp_path)), 0.5), str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first, trio.fail_after(60.0):
            first.connect(path)
            assert not await refusing.try_to_tell(caller, "it has no lease")
