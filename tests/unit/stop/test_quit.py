"""What `quit` does when a step fails by a bug in mpsd, and for how long users can delay it."""

import os
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import UNREAD
from mpsd.domains.pool import Pool
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.process import ProcessId
from mpsd.stop.quit import Shutdown

BUG = RuntimeError("a bug")
CLIENTS = range(5_000_000, 5_000_060)  # as many as a server takes; no processes


class Vendor:
    """A vendor daemon without servers.  bug: raised when mpsd asks it to quit, after it has asked the others."""

    process = None
    is_exposed = False
    silence_seconds = 15.0

    def __init__(self, bug: Exception | None = None) -> None:
        self.bug = bug
        self.did: list[str] = []

    async def commands(self, lines: Sequence[str]) -> str:
        return ""

    async def quit(self, patience_seconds: float) -> bool:
        if self.bug is not None:
            raise self.bug
        await trio.sleep(1)  # it is being ended as the other one fails
        self.did.append("quit")
        return True

    async def kill(self) -> None:
        self.did.append("kill")

    async def sweep(self) -> int:
        return 0


class Slow(Vendor):
    """A vendor daemon that carries out one command at a time; others' commands come first."""

    def __init__(self, command_seconds: float, look_seconds: float, others: int) -> None:
        super().__init__()
        self._command_seconds, self._look_seconds, self._others = command_seconds, look_seconds, others
        self._turn = trio.Lock()
        self.terminated = 0

    async def how_frozen(self, pid: int) -> str:
        await trio.sleep(self._look_seconds)
        return UNREAD if self._look_seconds else ""

    async def commands(self, lines: Sequence[str]) -> str:
        async with self._turn:
            await trio.sleep(self._others * self._command_seconds)
        raise VendorFailed("it is busy")  # mpsd goes on with what it knows

    async def command(self, line: str, check: Callable[[], Awaitable[None]]) -> str:
        async with self._turn:
            await check()
            await trio.sleep(self._command_seconds)
        self.terminated += 1
        return "0\n"


class NoRefuser:
    def __init__(self, bug: Exception | None = None) -> None:
        self.bug = bug

    async def open(self) -> None:
        if self.bug is not None:
            raise self.bug

    async def close(self, patience_seconds: float) -> None: ...


def shutdown(refuser: NoRefuser, *vendors: Vendor) -> Shutdown:
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    for number, vendor in enumerate(vendors, 1):
        name = f"domain-{number}"
        pool.domains[name] = Domain(name, number, ("GPU-a",), vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]

    async def see_off() -> None: ...

    return Shutdown(pool, refuser, 5.0, see_off)  # type: ignore[arg-type]


async def test_a_domain_that_cannot_be_ended_leaves_the_others_their_end(autojump_clock: object) -> None:
    bad, good = Vendor(BUG), Vendor()
    assert await shutdown(NoRefuser(), bad, good).quit_all(0) == 1
    assert (bad.did, good.did) == (["kill"], ["quit"])


async def test_a_quit_that_fails_ends_for_all_who_wait_for_it(autojump_clock: object) -> None:
    ending = shutdown(NoRefuser(BUG))
    with pytest.raises(RuntimeError):
        await ending.quit_all(0)
    with trio.fail_after(60):
        assert (ending.status, await ending.quit_all(0)) == (1, 1)


EndOf = Callable[[Slow, Sequence[int]], Shutdown]


@pytest.fixture
def with_clients(monkeypatch: pytest.MonkeyPatch) -> EndOf:
    """Return a function that returns the end of a domain with these clients."""
    monkeypatch.setattr(processes, "find", lambda pid: ProcessId(pid, 1))
    monkeypatch.setattr(processes, "state", lambda pid: "S")
    monkeypatch.setattr(processes, "is_alive", lambda process: True)

    def end(vendor: Slow, clients: Sequence[int]) -> Shutdown:
        ending = shutdown(NoRefuser(), vendor)
        domain = ending.pool.domains["domain-1"]
        domain.servers = {7: ServerView(7, os.geteuid(), "ACTIVE", tuple(clients), "domain-1", ("GPU-a",))}
        for client in (ProcessId(pid, 1) for pid in clients):
            domain.admit(client)
            domain.uids[client] = os.geteuid()
        return ending

    return end


@pytest.mark.parametrize(
    ("slow", "is_all"),
    [
        pytest.param((0.01, 1.0, 0), True, id="their cgroups cannot be read"),
        pytest.param((4.9, 0.0, 0), False, id="each command takes long"),
        pytest.param((4.9, 0.0, 1000), False, id="commands of others come first"),
    ],
)
async def test_one_user_cannot_delay_it_for_minutes(
    autojump_clock: object, with_clients: EndOf, slow: tuple[float, float, int], is_all: bool
) -> None:
    vendor = Slow(*slow)
    began = trio.current_time()
    assert await with_clients(vendor, CLIENTS).quit_all(0) == 0
    assert trio.current_time() - began <= 4 * vendor.silence_seconds + 5.0
    assert (vendor.terminated == len(CLIENTS)) is is_all


async def test_the_work_of_all_clients_of_a_busy_domain_is_ended(
    autojump_clock: object, with_clients: EndOf
) -> None:
    """The last ones ended with their server: killed, which harms all others there."""
    vendor = Slow(4.9, 0.0, 0)
    assert await with_clients(vendor, CLIENTS[:8]).quit_all(0) == 0
    assert vendor.terminated == 8


async def test_a_daemon_that_carries_out_no_command_is_given_up_early(
    autojump_clock: object, with_clients: EndOf
) -> None:
    vendor = Slow(1000.0, 0.0, 0)
    began = trio.current_time()
    assert await with_clients(vendor, CLIENTS).quit_all(0) == 0
    assert trio.current_time() - began <= 2 * vendor.silence_seconds + 5.0
