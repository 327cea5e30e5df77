"""A client that is stopped once its server has been asked to end its work: the server waits for it, and so do all others."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.domains import awaited_client
from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import FROZEN, UNREAD, how_frozen
from mpsd.domains.terminate_client import terminate_client
from mpsd.domains.vendor_control import VendorSilent
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.host.cgroups import unified_hierarchy
from mpsd.host.process_reader import UNREAD_SECONDS
from mpsd.model.domain import DomainState
from tests.inspecting import INSPECTOR
from tests.integration.cgroup import open_cgroup
from tests.unit.vault.machine import until

Child = subprocess.Popen[bytes]


class Vendor:
    """A vendor daemon.  It answers when `answer` returns, which is called once the command was sent."""

    def __init__(self, answer: Callable[[], Awaitable[None]]) -> None:
        self._answer = answer
        self._unified = unified_hierarchy()

    async def how_frozen(self, pid: int) -> str:
        return (await how_frozen(INSPECTOR, self._unified, [pid])).get(pid, "")

    async def command(self, line: str, check: Callable[[], Awaitable[None]]) -> str:
        await check()
        await self._answer()
        return "0\n"


def domain_of(child: Child, answer: Callable[[], Awaitable[None]], *, is_admitted: bool = True) -> Domain:
    domain = Domain("d1", 1, ("GPU-a",), Vendor(answer), 48, state=DomainState.READY)  # type: ignore[arg-type]
    process = processes.find(child.pid)
    assert process is not None
    if is_admitted:
        domain.admit(process)
        domain.uids[process] = os.geteuid()
    return domain


async def stop(child: Child) -> None:
    child.send_signal(signal.SIGSTOP)
    await until(lambda: processes.state(child.pid) == "T")


async def test_it_is_continued(child: Child) -> None:
    async def answer() -> None:
        for _ in range(2):
            await stop(child)
            await until(lambda: processes.state(child.pid) != "T")

    assert await terminate_client(domain_of(child, answer), 7, child.pid) == "0\n"
    assert child.poll() is None


async def test_one_that_sigcont_does_not_continue_is_killed(child: Child) -> None:
    """Its user holds it in a frozen cgroup, or by a debugger."""
    with open_cgroup() as cgroup:
        (cgroup / "cgroup.procs").write_text(str(child.pid))

        async def answer() -> None:
            (cgroup / "cgroup.freeze").write_text("1")
            await until(lambda: child.poll() is not None)

        await terminate_client(domain_of(child, answer), 7, child.pid)
    assert child.returncode == -signal.SIGKILL


async def test_it_is_continued_also_when_the_caller_has_gone(child: Child) -> None:
    """Its user asked, closed the connection, and stopped the client then."""
    with trio.CancelScope() as caller:

        async def answer() -> None:
            caller.cancel()
            try:
                await trio.sleep_forever()
            finally:
                child.send_signal(signal.SIGSTOP)

        await terminate_client(domain_of(child, answer), 7, child.pid)
    assert caller.cancelled_caught
    assert processes.state(child.pid) != "T"


async def test_it_is_continued_also_when_no_answer_came_in_time(child: Child) -> None:
    async def answer() -> None:
        child.send_signal(signal.SIGSTOP)
        raise VendorSilent("no answer")

    with pytest.raises(VendorFailed, match="no answer"):
        await terminate_client(domain_of(child, answer), 7, child.pid)
    assert processes.state(child.pid) != "T"


async def test_after_a_refusal_it_is_left_alone(child: Child) -> None:
    """The server does not wait for it."""

    async def answer() -> None:
        await stop(child)
        raise VendorFailed("refused")

    with pytest.raises(VendorFailed, match="refused"):
        await terminate_client(domain_of(child, answer), 7, child.pid)
    assert processes.state(child.pid) == "T"


@pytest.mark.parametrize("uid", [None, 65534], ids=["not a client that mpsd admitted", "another user's by now"])
async def test_no_process_of_another_is_signalled(child: Child, monkeypatch: pytest.MonkeyPatch, uid: int | None) -> None:
    """The list of a server that runs as its user may name any process."""
    looks: list[int] = []
    how_stopped = awaited_client.how_stopped
    monkeypatch.setattr(awaited_client, "how_stopped", lambda pid: looks.append(pid) or how_stopped(pid))

    async def answer() -> None:
        await stop(child)
        seen = len(looks) + 3
        await until(lambda: len(looks) >= seen)

    domain = domain_of(child, answer, is_admitted=uid is not None)
    domain.uids = {process: uid for process in domain.uids if uid is not None}
    await terminate_client(domain, 7, child.pid)
    assert processes.state(child.pid) == "T"


@pytest.mark.parametrize(
    ("looks", "signals"),
    [
        pytest.param([UNREAD], ["SIGCONT"], id="one"),
        pytest.param([UNREAD, "", UNREAD], ["SIGCONT", "SIGCONT"], id="two that are not in a row"),
        pytest.param([FROZEN, UNREAD], ["SIGCONT", "SIGCONT"], id="one after it was seen frozen"),
        pytest.param([UNREAD, UNREAD], ["SIGCONT", "SIGKILL"], id="two in a row"),
        pytest.param([UNREAD, FROZEN], ["SIGCONT", "SIGKILL"], id="one before it is seen frozen"),
    ],
)
async def test_one_late_look_alone_kills_no_client(
    child: Child, autojump_clock: trio.testing.MockClock, looks: list[str], signals: list[str]
) -> None:
    """On a busy machine the look and the server were late, and mpsd killed a program that was to live on with error 810."""
    left = ["", "", *looks]  # two come before the command
    has_looked = trio.Event()

    async def how_frozen(pid: int) -> str:
        if not left:
            has_looked.set()
            return ""
        await trio.sleep(1.0 if left[0] == UNREAD else 0.0)  # mpsd's patience
        return left.pop(0)

    domain = domain_of(child, has_looked.wait)
    domain.control.how_frozen = how_frozen  # type: ignore[method-assign]
    with capture_logs() as logs:
        await terminate_client(domain, 7, child.pid)
    assert [line["signal"] for line in logs if line["event"] == "client.signalled"] == signals


async def test_two_late_looks_kill_it_also_after_an_early_timeout_of_the_command(
    child: Child, autojump_clock: trio.testing.MockClock
) -> None:
    """vendor.command_seconds may be small: the server waits for the client all the same."""
    looks = iter(["", ""])

    async def how_frozen(pid: int) -> str:
        if (how := next(looks, UNREAD)) == UNREAD:
            await trio.sleep(1.5)  # mpsd's patience, and the slack
        return how

    async def answer() -> None:
        raise VendorSilent("no answer")

    domain = domain_of(child, answer)
    domain.control.how_frozen = how_frozen  # type: ignore[method-assign]
    with pytest.raises(VendorFailed, match="no answer"):
        await terminate_client(domain, 7, child.pid)
    assert child.wait() == -signal.SIGKILL


async def slow_answer() -> None:
    await trio.sleep(20.0)


async def signals_while(
    child: Child, monkeypatch: pytest.MonkeyPatch, state: Callable[[], str], answer: Callable[[], Awaitable[None]]
) -> list[str]:
    """Return the signals that mpsd logs for a client in these states, of which it asked the server to end the work."""
    domain = domain_of(child, answer)

    async def how_frozen(pid: int) -> str:
        return ""

    domain.control.how_frozen = how_frozen  # type: ignore[method-assign]
    monkeypatch.setattr(processes, "state", lambda pid: state())
    with capture_logs() as logs, suppress(VendorSilent):
        await terminate_client(domain, 7, child.pid)
    return [line["signal"] for line in logs if line["event"] == "client.signalled"]


@pytest.mark.parametrize("is_silent", [False, True], ids=["no answer yet", "the command was given up"])
async def test_one_whose_state_is_never_known_is_killed(
    child: Child, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """With many threads and without its first one no look shows its state."""

    async def answer() -> None:
        await trio.sleep(0.1 if is_silent else 5.5)
        if is_silent:
            raise VendorSilent("no answer")

    states = iter("SS")  # two looks before the command
    logged = await signals_while(child, monkeypatch, lambda: next(states, "?"), answer)
    assert logged == ["SIGCONT", "SIGKILL"], "one line of each: it was one at each look"
    assert child.wait() == -signal.SIGKILL


async def test_one_whose_state_is_not_known_for_seconds_is_not_killed(
    child: Child, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process can cause that for all processes of its user; on a busy GPU the answer takes longer than a second."""

    def state() -> str:
        return "S" if trio.current_time() % 5.5 < 0.6 else "?"

    signals = await signals_while(child, monkeypatch, state, slow_answer)
    assert {*signals} == {"SIGCONT"}


async def test_one_read_that_takes_seconds_kills_no_client(
    child: Child, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while no processor is free for the reader."""
    states = iter(["S", "S", "late", "?"])  # two looks before the command

    def state() -> str:
        if (found := next(states, "S")) == "late":
            autojump_clock.jump(UNREAD_SECONDS + 1.0)
        return "?" if found == "late" else found

    assert await signals_while(child, monkeypatch, state, slow_answer) == ["SIGCONT"]


@pytest.mark.parametrize("first", ["??", "S?", "?S"])
async def test_the_work_of_one_whose_state_is_not_known_is_ended(
    child: Child, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """33 threads without a first one were a refuge: mpsd refused each end of such a client, which went on with its work."""
    states = iter(first)
    has_sent: list[bool] = []

    async def answer() -> None:
        has_sent.append(True)

    assert await signals_while(child, monkeypatch, lambda: next(states, "?"), answer) == []
    assert has_sent


@pytest.fixture
def without_first_thread() -> Iterator[Child]:
    """Return a process with many threads that is about to end its first one."""
    program = (
        "import ctypes, threading, time\n"
        "for _ in range(40): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        yield child
        child.kill()


async def test_one_with_many_threads_and_no_first_one_is_ended(without_first_thread: Child) -> None:
    """As the kernel shows it."""
    await until(lambda: processes.has_thread_ended(without_first_thread.pid))

    async def answer() -> None: ...

    assert await terminate_client(domain_of(without_first_thread, answer), 7, without_first_thread.pid) == "0\n"
