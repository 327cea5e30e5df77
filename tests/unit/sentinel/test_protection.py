"""The sentinels of one domain."""

import os
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.process import ProcessId
from mpsd.sentinel import protection as module
from mpsd.sentinel.messages import UNLESS_CONTAINED, SentinelOp, pack_request
from mpsd.sentinel.protection import Protection
from mpsd.sentinel.watcher import Watcher


async def test_a_sentinel_that_is_not_ready_does_not_delay_the_naming_of_other_clients() -> None:
    """Until it is ready it may not read for seconds, and one task names the clients of all domains."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        process = processes.process_id(os.getpid())
        assert process
        domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY, members={process: 0.0}, channels={process})
        watcher = Watcher("GPU-0", here, lambda watcher, report: None, lambda watcher: None)
        protection = Protection(domain, None, None, print, print, print, {"GPU-0": watcher})  # type: ignore[arg-type]
        assert not await protection.name_clients()
        assert not watcher.added
        watcher.is_armed = True
        assert await protection.name_clients()
        _, descriptors, _, _ = socket.recv_fds(there, 64, 4, socket.MSG_DONTWAIT)
        os.close(descriptors[0])


async def test_a_process_that_has_only_connected_is_not_named() -> None:
    """It stays a member until it ends.  One user's idle processes filled the sentinel's 64 places, and mpsd read all of them at
    each change: 0.7 s of the event loop each time."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        process = processes.process_id(os.getpid())
        assert process
        domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY, members={process: 0.0})  # type: ignore[arg-type]
        watcher = Watcher("GPU-0", here, lambda watcher, report: None, lambda watcher: None)
        watcher.is_armed = True
        protection = Protection(domain, None, None, print, print, print, {"GPU-0": watcher})  # type: ignore[arg-type]
        assert not await protection.name_clients()
        assert not watcher.added
        domain.attach(process)
        assert await protection.name_clients()
        _, descriptors, _, _ = socket.recv_fds(there, 64, 4, socket.MSG_DONTWAIT)
        os.close(descriptors[0])


async def test_who_has_no_context_leaves_places_to_those_who_have() -> None:
    """A process that has passed a descriptor to the vendor's daemon counts as one with a channel to its end, also after a
    restart of mpsd: 62 idle ones of one user and two of mpsd's own took all places."""
    idle = [ProcessId(pid, 1) for pid in range(1000, 1100)]
    domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.members = dict.fromkeys([*idle, ProcessId(2000, 1)], 0.0)
    domain.channels = set(domain.members)
    watcher = EndlessWatcher()
    protection = Protection(domain, None, None, print, print, print, {"GPU-0": watcher})  # type: ignore[arg-type, dict-item]
    for _ in range(2):
        await protection.name_clients()
        assert len(watcher.added) == 16
    domain.contexts = {1: Counter([2000])}
    assert await protection.name_clients()
    assert {each.pid for each in watcher.added} - {each.pid for each in idle} == {2000}


class EndlessWatcher:
    """All processes that are named live."""

    is_armed = True

    def __init__(self) -> None:
        self.added: set[ProcessId] = set()

    def forget_gone(self) -> None: ...

    async def add(self, process: ProcessId) -> bool:
        is_new = process not in self.added
        self.added.add(process)
        return is_new


async def test_a_sentinel_that_starts_while_it_must_not_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """When mpsd quits, a domain's sentinel may be on its way: no list of sentinels has it yet."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    control = SimpleNamespace(reach=lambda *words: words, environment=dict, home=SimpleNamespace(path=Path("/")))
    domain = Domain("a", 1, ("GPU-0",), control, 48, state=DomainState.READY)  # type: ignore[arg-type]
    pool = SimpleNamespace(program=SimpleNamespace(inspector=Path("/")), notify=lambda: None)
    settings = SimpleNamespace(program=Path("/"))
    asked, may_start = trio.Event(), trio.Event()

    def started(*_: object) -> socket.socket:
        trio.from_thread.run_sync(asked.set)
        trio.from_thread.run(may_start.wait)
        return here

    async def start() -> None:
        with suppress(VendorFailed):
            await protection._start_one("GPU-0", 0, 0)

    monkeypatch.setattr(module, "start_sentinel", started)
    with there, trio.fail_after(20):
        async with trio.open_nursery() as inside:
            protection = Protection(domain, pool, settings, inside.start_soon, print, print)  # type: ignore[arg-type]
            inside.start_soon(start)
            await asked.wait()
            async with protection.aside():
                may_start.set()
                request = await trio.to_thread.run_sync(there.recv, 64, abandon_on_cancel=True)
                assert request == pack_request(SentinelOp.END)
                there.close()  # as the program does at its end
    assert not protection.watchers


async def test_a_command_that_needs_all_clients_is_refused_while_an_exception_is_contained() -> None:
    """Without its stopped client the server would end them all, and answer nothing meanwhile."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY)
    pool = SimpleNamespace(notify=lambda: None)
    with here, there:
        watcher = Watcher("GPU-0", here, lambda watcher, report: None, lambda watcher: None)
        watcher.decided.set()
        protection = Protection(domain, pool, None, print, print, print, {"GPU-0": watcher})  # type: ignore[arg-type]
        domain.state = DomainState.CONTAINED
        with pytest.raises(VendorFailed, match="answers no command"):
            async with protection.aside(unless_contained=True):
                pytest.fail("the command was sent")
        assert there.recv(64) == pack_request(SentinelOp.END, UNLESS_CONTAINED)
    assert (protection._asides, protection._ends) == (0, 0)


async def test_a_start_that_fails_delays_no_other_user(autojump_clock: object) -> None:
    """Its user can end it while it starts; in a server of all users, only root can."""
    for is_multiuser in (False, True):
        pool = SimpleNamespace(settings=SimpleNamespace(is_multiuser=is_multiuser), notify=lambda: None)
        settings = SimpleNamespace(is_on=True, is_required=True)
        domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
        protection = Protection(domain, pool, settings, print, print, print)  # type: ignore[arg-type]
        await protection._give_up(1000, "it was ended")
        assert (protection.may_start(1000), protection.may_start(1001)) == (False, not is_multiuser)
        await trio.sleep(31)
        assert protection.may_start(1000)


async def test_the_sentinels_of_all_gpus_end_with_one_that_contains_an_exception_no_more(autojump_clock: object) -> None:
    """The stopped client of another GPU kept the server from its end: all clients hung until the domain was restarted."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gpus = ("GPU-0", "GPU-1")
    server = ServerView(os.getpid(), 0, "ACTIVE", (os.getppid(),), "a", gpus)
    domain = Domain("a", 1, gpus, None, 48, state=DomainState.CONTAINED, servers={server.pid: server})  # type: ignore[arg-type]
    pool = SimpleNamespace(notify=lambda: None)
    with here, there:
        async with trio.open_nursery() as inside:
            protection = Protection(domain, pool, None, inside.start_soon, print, print)  # type: ignore[arg-type]
            failed, other = (Watcher(gpu, here, print, protection._note_end) for gpu in gpus)
            protection.watchers = {each.gpu: each for each in (failed, other)}
            failed.why = "the SM had other warps"
            protection._note_end(failed)
            await trio.testing.wait_all_tasks_blocked()
            other.gone.set()
        assert there.recv(64, socket.MSG_DONTWAIT) == pack_request(SentinelOp.END)
    assert domain.state is DomainState.FAULT
