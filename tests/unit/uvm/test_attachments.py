"""Clients from their first connection on: attached once, shielded as soon as can be, and nothing is left of them."""

import errno
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.host import polling
from mpsd.host.rules.descriptor_budget import MOST_SPACES, OF_A_CLIENT
from mpsd.model.client import UNKNOWN, ShieldState, WatchStatus
from mpsd.model.fault import Source
from mpsd.model.process import ProcessId
from mpsd.threads import UserThreads
from mpsd.uvm.attachments import Attachments
from mpsd.uvm.simulator import SimulatedQueue
from mpsd.uvm.space import Space, Unavailable
from mpsd.uvm.status import UvmSettings
from tests.descriptors import descriptors
from tests.inspecting import INSPECTOR
from tests.running import started
from tests.unit.uvm.fake_clients import (
    GPU,
    WATCHED,
    FakeClient,
    FakeSpace,
    Told,
    a_client,
    attached,
    attachments,
    company,
    directly,
    nobody,
    until,
    watching,
)

LAID = "10000+1f0000s 200000+200000s"


async def test_a_client_is_attached_and_its_fault_told_with_proof(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        await until(lambda: made.standing(client.process) == WATCHED)
        assert (client.ask("ranges"), client.ask("attached")) == (LAID, "1")
        before = time.monotonic_ns()
        client.ask("fault 3 0x7000dead0000 2 0 1")
        client.ask("fault 6 0x7000dead0000 2 1 1")
        await told.wait_for(1)
    (seen,) = told.observations
    assert (seen.source, seen.process, seen.domain, seen.gpu) == (Source.UVM_EVENTS, client.process, "default", GPU)
    assert (seen.is_proof, seen.address, seen.access, seen.seen_ns > before) == (True, 0x7000DEAD0000, "write", True)


async def test_a_flood_is_few_observations_with_a_count(tmp_path: Path, client: FakeClient, told: Told) -> None:
    """600 entries of one copy: the first at once, the rest together, what did not fit counted."""
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        await until(lambda: made.standing(client.process).watched)
        client.ask("fault 6 0x1000 1 1 1")
        await told.wait_for(1)
        client.ask("fault 6 0x2000 1 1 1500")
        await told.wait_for(2)
    assert [seen.address for seen in told.observations] == [0x1000, 0x2000]
    assert "the first of 1024; 476 more were lost" in told.observations[1].text


async def test_a_fault_is_told_also_where_its_queue_cannot_be_watched(
    tmp_path: Path, client: FakeClient, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error, at fs.epoll.max_user_watches, ended the watch of the client, and with it its shield."""
    wait_readable = trio.lowlevel.wait_readable

    async def watch(descriptor: object) -> None:
        if isinstance(descriptor, SimulatedQueue):
            raise OSError(errno.ENOSPC, "No space left on device")
        await wait_readable(descriptor)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.lowlevel, "wait_readable", watch)
    monkeypatch.setattr(polling, "_LOOK_SECONDS", 0.01)
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        await until(lambda: made.standing(client.process) == WATCHED)
        client.ask("fault 6 0x7000dead0000 2 1 1")
        await told.wait_for(1)
        assert made.standing(client.process) == WATCHED


async def test_lost_events_are_in_the_log_once(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    client.begin()
    with structlog.testing.capture_logs() as lines:
        async with attached(made, client):
            await until(lambda: made.standing(client.process).watched)
            for count in (1, 2):
                client.ask("fault 6 0x2000 1 1 1500")
                await told.wait_for(count)
    assert [line["count"] for line in lines if line["event"] == "uvm.events_lost"] == [476]


async def test_the_shield_comes_with_the_context(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    client.ask("open")
    async with attached(made, client):
        await until(lambda: made.standing(client.process).shield is ShieldState.WAITING)
        assert made.standing(client.process).watched
        client.ask("register")
        await until(lambda: made.standing(client.process) == WATCHED)


async def test_a_context_that_comes_much_later_wakes_it(tmp_path: Path, client: FakeClient, told: Told, mock_clock) -> None:
    """A connection announces it, so that no polling is needed."""
    made = attachments(tmp_path, told, in_thread=directly)
    client.ask("open")
    async with attached(made, client):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(2.5)
        await trio.testing.wait_all_tasks_blocked()
        client.ask("register")
        mock_clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert made.standing(client.process).shield is ShieldState.WAITING
        made.watch(client.process, "default", (GPU,), company)
        await trio.testing.wait_all_tasks_blocked()
        assert made.standing(client.process) == WATCHED


async def test_descriptors_that_come_late_are_found(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    async with attached(made, client):
        await until(lambda: "not found yet" in made.standing(client.process).why)
        client.begin()
        await until(lambda: made.standing(client.process) == WATCHED)


async def test_a_client_is_attached_once(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        await until(lambda: made.standing(client.process) == WATCHED)
        before = descriptors()
        for _ in range(20):
            made.watch(client.process, "default", (GPU,), company)
            await trio.testing.wait_all_tasks_blocked(0.001)
        await until(lambda: descriptors() == before)  # what looks have open goes with them
        assert (made.count, made.standing(client.process)) == (1, WATCHED)


async def test_a_fault_is_told_of_the_domain_to_which_the_client_went_in_the_end(
    tmp_path: Path, client: FakeClient, told: Told
) -> None:
    """Its first connection may have been for a domain that then fell ill, or served another user."""
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        made.watch(client.process, "d2", ("GPU-b",), company)
        await until(lambda: made.standing(client.process) == WATCHED)
        client.ask("fault 6 0x7000dead0000 2 1 1")
        await told.wait_for(1)
    assert [(seen.domain, seen.gpu) for seen in told.observations] == [("d2", "GPU-b")]


@pytest.mark.parametrize("words", ["close", "exec"])
async def test_what_a_client_closes_is_let_go(tmp_path: Path, client: FakeClient, told: Told, mock_clock, words: str) -> None:
    """Or the memory of a program that was replaced by another would stay on the GPU as long as that one runs."""
    made = attachments(tmp_path, told, in_thread=directly)
    client.begin()
    before = descriptors()
    async with attached(made, client):
        await until(lambda: made.standing(client.process) == WATCHED)
        client.ask(words)
        client.ask("x")  # the new program answers: the old one is gone
        assert client.is_held
        mock_clock.jump(2.5)
        await until(lambda: not client.is_held)
        assert not made.standing(client.process).watched
        client.begin()
        made.watch(client.process, "default", (GPU,), company)
        await until(lambda: made.standing(client.process) == WATCHED)
    assert descriptors() == before


async def test_clients_of_an_earlier_mpsd_are_attached_anew(tmp_path: Path, client: FakeClient, told: Told) -> None:
    """mpsd recognises the mappings of the previous mpsd and leaves them."""
    client.begin()
    for shield in (ShieldState.ON, ShieldState.KEPT):
        made = attachments(tmp_path, told)
        made.watch(client.process, "default", (GPU,), company)  # before it runs
        async with started(made.run):
            await until(lambda made=made, shield=shield: made.standing(client.process).shield is shield)
            assert made.standing(client.process).watched
        assert client.ask("ranges") == LAID
        assert client.ask("attached") == "0"
    made.watch(client.process, "default", (GPU,), company)  # after it ran: nothing happens


# -- where it cannot be ------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_is_said_once(client: FakeClient, tmp_path: Path, told: Told) -> None:
    def nothing_here(process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        raise Unavailable("there is no such device")

    with a_client(tmp_path) as second, structlog.testing.capture_logs() as lines:
        made = watching(UvmSettings(), nothing_here, INSPECTOR, told)
        async with attached(made, client):
            made.watch(second.process, "default", (GPU,), company)
            for each in (client, second):
                await until(lambda each=each: "no such device" in made.standing(each.process).why)
    assert [line["why"] for line in lines] == ["there is no such device"]


async def test_a_bug_ends_one_watch_and_leaves_nothing(client: FakeClient, tmp_path: Path, told: Told) -> None:
    def fails(process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        raise RuntimeError("a bug")

    before = descriptors()
    with structlog.testing.capture_logs() as lines:
        made = watching(UvmSettings(), fails, INSPECTOR, told)
        async with attached(made, client):
            await until(lambda: made.count == 0)
    assert ([line["event"] for line in lines], descriptors()) == (["uvm.bug"], before)


async def test_there_is_a_bound(tmp_path: Path, client: FakeClient, told: Told) -> None:
    client.begin()
    with a_client(tmp_path) as second, a_client(tmp_path) as third, structlog.testing.capture_logs() as lines:
        made = attachments(tmp_path, told, most=1)
        async with attached(made, client):
            for each in (second, third):
                made.watch(each.process, "default", (GPU,), company)
                assert made.standing(each.process) == UNKNOWN
            client.end()
            await until(lambda: made.count == 0)
            made.watch(second.process, "default", (GPU,), company)
            assert made.count == 1
    assert [line["event"] for line in lines] == ["uvm.full"]


async def test_one_that_is_gone_before_anything_happened(tmp_path: Path, told: Told) -> None:
    with a_client(tmp_path) as client:
        process = client.process
    made = attachments(tmp_path, told)
    async with started(made.run):
        made.watch(process, "default", (GPU,), company)
        await until(lambda: made.count == 0)


@pytest.mark.parametrize(
    ("settings", "expected", "ranges"),
    [
        ({"events": False, "shield": "off", "hold": False}, UNKNOWN, ""),
        ({"events": False, "shield": "off"}, WatchStatus(held=True), ""),
        ({"shield": "off", "hold": False}, WatchStatus(watched=True), ""),
        ({"events": False}, WatchStatus(shield=ShieldState.ON, held=True), LAID),
    ],
)
async def test_each_part_can_be_off(tmp_path: Path, client: FakeClient, told: Told, settings, expected, ranges: str) -> None:
    client.begin()
    made = attachments(tmp_path, told, **settings)
    async with attached(made, client):
        await until(lambda: made.standing(client.process) == expected)
        assert (client.ask("ranges"), client.ask("attached")) == (ranges, str(int(expected.watched)))


FEW = 12  # descriptors of further inspectors, which start when questions overlap


@pytest.mark.deadline(60)
@pytest.mark.slow
async def test_a_thousand_lives_leave_nothing(tmp_path: Path, client: FakeClient, told: Told) -> None:
    """Cancelled at every possible step, one after the other."""
    client.begin()
    before = descriptors()
    cut = sum([await live(attachments(tmp_path, told), client, number % 6) for number in range(1000)])
    left = descriptors() - before
    assert left < FEW, "what each sixth life leaves would be 166"
    assert client.ask("attached") == "0"
    assert cut >= 500


async def live(made: Attachments, client: FakeClient, steps: int) -> bool:
    """Until attached, or for so many steps of work in threads; whether it was cut off."""

    async def some(function, *args):
        nonlocal steps
        steps -= 1
        if steps < 0:
            scope.cancel()
        return await directly(function, *args)

    made._around = replace(made._around, in_thread=some)  # of the sweeps, which no user makes
    made._looks, made._closings = UserThreads(8, some), UserThreads(8, some)
    with trio.CancelScope() as scope:
        async with attached(made, client):
            await until(lambda: made.standing(client.process).shield is ShieldState.KEPT)
    assert made.count == 0
    return steps < 0


class Greedy:
    """Clients that open eight UVM descriptors between any two looks, none of them a VA space."""

    def __init__(self) -> None:
        self.spaces: dict[ProcessId, list[FakeSpace]] = {}
        self.looks = 0

    def open_spaces(self, process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        self.looks += 1
        new = [FakeSpace(descriptors=9) for _ in range(8)]
        self.spaces.setdefault(process, []).extend(new)
        return [*new]

    def held(self, process: ProcessId) -> int:
        return sum(("close",) not in space.asked for space in self.spaces.get(process, ()))


async def test_however_many_descriptors_a_client_opens_mpsd_takes_a_few(tmp_path: Path, client: FakeClient, told: Told) -> None:
    """Eight more at each look, with up to eight others each, used up all that mpsd may open."""
    greedy = Greedy()
    made = watching(UvmSettings(), greedy.open_spaces, INSPECTOR, told)
    with structlog.testing.capture_logs() as logs:
        async with attached(made, client):
            for _ in range(20):
                made.watch(client.process, "default", (GPU,), company)
                await trio.sleep(0.06)
            assert greedy.held(client.process) == MOST_SPACES
            assert greedy.looks <= 2
    [why] = [entry["why"] for entry in logs if entry["event"] == "uvm.absent"]
    assert "as many of mpsd's descriptors as they may" in why


async def test_a_users_clients_have_a_share_of_the_descriptors_together(tmp_path: Path, told: Told) -> None:
    """And what one of them gives back, another may take."""
    greedy = Greedy()
    made = watching(UvmSettings(), greedy.open_spaces, INSPECTOR, told)
    with ExitStack() as clients, structlog.testing.capture_logs():
        crowd = [clients.enter_context(a_client(tmp_path)) for _ in range(6)]
        async with started(made.run):
            most = 64 + len(crowd) * OF_A_CLIENT  # 106, so that the third client's four spaces are the last
            for number, client in enumerate(crowd):
                made.watch(client.process, "default", (GPU,), nobody)
                while number < 3 and not greedy.held(client.process):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            served = [client for client in crowd if greedy.held(client.process)]
            assert (len(served), sum(greedy.held(each.process) for each in crowd) * 9 >= most) == (3, True)
            for client in served:
                client.kill()
            await until(lambda: sum(bool(greedy.held(each.process)) for each in crowd if each not in served) >= 2)


async def test_a_client_counts_against_the_user_who_connected(tmp_path: Path, client: FakeClient, told: Told) -> None:
    """It may run a program of another user's by now (setuid), who would get no descriptor then."""
    greedy = Greedy()
    made = watching(UvmSettings(), greedy.open_spaces, INSPECTOR, told)
    with a_client(tmp_path) as other:
        async with started(made.run):
            made.watch(client.process, "default", (GPU,), nobody, uid=1000)
            made.watch(other.process, "default", (GPU,), nobody)
            assert made._clients == {1000: 1, os.getuid(): 1}


async def test_looks_at_one_users_clients_keep_no_other_client_waiting(
    tmp_path: Path, client: FakeClient, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at a process that keeps its readers waiting takes a thread for more than a second: eight took them all."""
    monkeypatch.setattr("mpsd.host.processes.charged_uid", lambda pid: 1000 + (pid == client.process.pid))
    over = threading.Event()

    def open_spaces(process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        if process != client.process:
            over.wait()
        return [] if have else [FakeSpace()]

    made = watching(UvmSettings(), open_spaces, INSPECTOR, told)
    with ExitStack() as clients:
        crowd = [clients.enter_context(a_client(tmp_path)) for _ in range(10)]
        async with started(made.run):
            try:
                for each in (*crowd, client):
                    made.watch(each.process, "default", (GPU,), company)
                with trio.fail_after(5):
                    await until(lambda: made.standing(client.process).held)
            finally:
                over.set()
