"""Guards that a client maps between its allocations: the events of its queue, and their handling."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.errors import TooMany
from mpsd.faults.rules.verdict import judge
from mpsd.host import processes
from mpsd.host.rules.descriptor_budget import MOST_SPACES
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.uvm.abi import EventKind, UvmEvent
from mpsd.uvm.client_watch import Watch, WatchParts
from mpsd.uvm.fault_digest import digest_guarded, guarded
from mpsd.uvm.holding import HeldSpace, look
from mpsd.uvm.space import Taken
from mpsd.uvm.status import UvmSettings
from tests.inspecting import INSPECTOR
from tests.unit.uvm.fake_clients import FakeClient, FakeSpace, Told, attached, attachments, company, directly

P, OTHER = ProcessId(4711, 99), ProcessId(4712, 99)
WINDOW = range(0x5000_0000_0000, 0x5040_0000_0000)
INSIDE = UvmEvent(EventKind.GPU_FAULT, 1, "write", 0x5000_0020_0000, 4, 0)
FIRST = UvmEvent(EventKind.GPU_FAULT, 1, "read", WINDOW.start, 4, 0)
LAST = UvmEvent(EventKind.GPU_FAULT, 1, "read", WINDOW.stop - 1, 4, 0)
BEFORE = UvmEvent(EventKind.GPU_FAULT, 1, "write", WINDOW.start - 1, 4, 0)
BEYOND = UvmEvent(EventKind.GPU_FAULT, 1, "write", WINDOW.stop, 4, 0)
FATAL = UvmEvent(EventKind.FATAL, 1, "write", 0x5000_0020_0000, 5, 1)


def test_only_served_faults_in_a_guard_count() -> None:
    """Managed memory of the program's own, elsewhere, faults all day."""
    assert guarded([BEFORE, FIRST, INSIDE, LAST, BEYOND, FATAL], [WINDOW]) == (FIRST, INSIDE, LAST)
    assert guarded([INSIDE], []) == ()


def seen(*events: UvmEvent) -> Observation:
    return digest_guarded(events, P, "default", ("GPU-a",), 1000)


def test_an_access_is_proof_and_contained() -> None:
    text = "write at 0x500000200000: in a guard that the client has laid between its allocations; the first of 2"
    assert seen(INSIDE, LAST) == Observation(
        Source.UVM_EVENTS, 1000, FaultClass.MMU, "GPU-a", "default", P, is_proof=True, address=0x5000_0020_0000,
        access="write", text=text, is_contained=True,
    )  # fmt: skip


def test_nobody_is_the_victim_of_an_access_to_a_guard() -> None:
    verdict = judge([seen(INSIDE)], frozenset({P, OTHER}), P)
    assert (verdict.culprit, verdict.victims) == (P, ())


def test_a_fatal_fault_beside_it_has_victims() -> None:
    fatal = Observation(Source.UVM_EVENTS, 1001, FaultClass.MMU, process=P, is_proof=True)
    assert judge([seen(INSIDE), fatal], frozenset({P, OTHER}), P).victims == (OTHER,)


async def test_an_access_is_told_once_it_is_known_not_to_be_fatal(tmp_path: Path, client: FakeClient, told: Told) -> None:
    """The first is not in a guard, the second belongs to a fatal fault, the third is an access to a guard."""
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        assert await made.guard(client.process, WINDOW.start, len(WINDOW))
        client.ask(f"fault 3 {WINDOW.stop:#x} 2 0 1")
        client.ask(f"fault 3 {WINDOW.start + 64:#x} 2 0 1")
        client.ask(f"fault 6 {WINDOW.start + 64:#x} 2 1 1")
        await told.wait_for(1)
        client.ask(f"fault 3 {WINDOW.start + 128:#x} 1 0 1")
        await told.wait_for(2)
    fatal, contained = told.observations
    assert (fatal.is_contained, fatal.address) == (False, WINDOW.start + 64)
    assert (contained.is_contained, contained.address, contained.access) == (True, WINDOW.start + 128, "read")


async def test_what_a_client_did_last_is_told(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        assert await made.guard(client.process, WINDOW.start, len(WINDOW))
        client.ask(f"fault 3 {WINDOW.start:#x} 2 0 1")
        client.kill()
        await told.wait_for(1)
    assert told.observations[0].is_contained


async def test_ranges_are_bounded_and_the_same_counts_once(tmp_path: Path, client: FakeClient, told: Told) -> None:
    made = attachments(tmp_path, told)
    client.begin()
    async with attached(made, client):
        for place in (*range(64), 5):
            assert await made.guard(client.process, place << 30, 1 << 30)
        with pytest.raises(TooMany):
            await made.guard(client.process, 64 << 30, 1 << 30)


async def test_who_is_not_watched_is_told_so(tmp_path: Path, told: Told) -> None:
    """Its guards only absorb accesses then."""
    assert not await attachments(tmp_path, told).guard(P, WINDOW.start, len(WINDOW))


@pytest.mark.parametrize(("spaces", "is_proof"), [(1, True), (2, False)])
@pytest.mark.parametrize("event", [INSIDE, FATAL])
def test_a_client_with_a_second_va_space_is_accused_without_proof(event: UvmEvent, spaces: int, is_proof: bool) -> None:
    """It may be another user's, whose process sent it over a socket: its faults convicted the client that received it."""
    told, queue = Told(), OneEvent(event)
    watch = watch_of(told, queue, spaces)
    watch._guards.append(WINDOW)
    watch._take(queue)
    watch._tell_guarded()
    [observation] = told.observations
    assert (observation.is_proof, observation.process) == (is_proof, P)
    assert observation.text.endswith("several VA spaces") != is_proof


@pytest.mark.parametrize(("spaces", "is_held"), [(1, False), (2, True)])
def test_a_fault_that_may_be_of_another_process_ends_no_hold(spaces: int, is_held: bool) -> None:
    """A user who had sent a client such a descriptor could so let its kill take the client's co-runners along."""
    queue = OneEvent(FATAL)
    watch = watch_of(Told(), queue, spaces)
    assert watch._is_worth_holding
    watch._take(queue)
    assert watch._is_worth_holding is is_held


@pytest.mark.parametrize(("others", "is_proof"), [(0, True), (1, True), (MOST_SPACES - 1, False)])
async def test_a_client_with_more_descriptors_than_mpsd_holds_is_accused_without_proof(others: int, is_proof: bool) -> None:
    """One that it received first may be of another process's VA space, and its own may be none of those."""
    told, queue = Told(), OneEvent(FATAL)
    received = [FakeSpace(), *(FakeSpace() for _ in range(others))]
    received[0].attach = lambda: queue  # type: ignore[assignment, method-assign]
    take = lambda process, pidfd, have: [each for each in received if each not in have]  # noqa: E731
    around = WatchParts(take, ignore, lambda process: True, INSPECTOR, told, directly, directly, ignore, ignore)  # type: ignore[arg-type]
    found = processes.process_id(os.getpid())
    assert found is not None
    watch = Watch(found, "default", ("GPU-a",), company, True, UvmSettings(shield="off"), around)
    await watch._look(-1, SimpleNamespace(start_soon=ignore))  # type: ignore[arg-type]
    watch._take(queue)
    [observation] = told.observations
    assert observation.is_proof is is_proof


def watch_of(told: Told, queue: "OneEvent", spaces: int) -> Watch:
    around = WatchParts(ignore, ignore, ignore, INSPECTOR, told, directly, directly, ignore, ignore)  # type: ignore[arg-type]
    watch = Watch(P, "default", ("GPU-a",), company, True, UvmSettings(), around)
    watch.holdings = [HeldSpace(FakeSpace(), queue, is_space=True) for _ in range(spaces)]
    watch._is_complete = True
    return watch


@pytest.mark.parametrize(
    ("own_comes", "asks", "is_proof"),
    [(False, False, False), (False, True, True), (True, False, False), (True, True, False)],
)
async def test_a_client_that_may_lack_its_own_va_space_is_accused_without_proof(
    own_comes: bool, asks: bool, is_proof: bool
) -> None:
    """CUDA opens it after the first connection, when mpsd has looked.  The only one then could be of another process, which had
    sent the client a descriptor before; mpsd looked for no other one, and that one's fault convicted the client."""
    told, queue = Told(), OneEvent(FATAL)
    there = [FakeSpace()]
    there[0].attach = lambda: queue  # type: ignore[assignment, method-assign]
    take = lambda process, pidfd, have: [each for each in there if each not in have]  # noqa: E731
    around = WatchParts(take, ignore, lambda process: True, INSPECTOR, told, directly, directly, ignore, ignore)  # type: ignore[arg-type]
    found = processes.process_id(os.getpid())
    assert found is not None
    watch = Watch(found, "default", ("GPU-a",), company, True, UvmSettings(shield="off"), around, has_asked=False)
    life: Any = SimpleNamespace(start_soon=ignore)
    await watch._look(-1, life)
    if own_comes:
        there.append(FakeSpace(number=4))
        there[1].attach = lambda: queue  # type: ignore[assignment, method-assign]
    if asks:
        watch.connect("default", ("GPU-a",), company)
        await watch._look(-1, life)
    watch._take(queue)
    [observation] = told.observations
    assert observation.is_proof is is_proof


@pytest.mark.parametrize(("comes_first", "connections", "is_proof"), [(0, 1, False), (0, 2, True), (1, 1, True)])
async def test_the_first_connection_of_a_program_that_the_client_executes_asks_for_no_context(
    monkeypatch: pytest.MonkeyPatch, comes_first: int, connections: int, is_proof: bool
) -> None:
    """What it had received before stays open there, and its own VA space comes after that connection."""
    told, queue = Told(), OneEvent(FATAL)
    watch = watch_of(told, queue, 2)
    found = processes.process_id(os.getpid())
    assert found is not None
    watch.process = found
    nothing: Any = lambda process, pidfd, have: []  # noqa: E731
    watch.around = WatchParts(nothing, ignore, lambda process: True, INSPECTOR, told, directly, directly, ignore, ignore)
    life: Any = SimpleNamespace(start_soon=ignore)
    own = watch.holdings[0]
    monkeypatch.setattr("mpsd.uvm.holding.find_closed", lambda have, inspector: [each for each in have if each is own])
    for _ in range(comes_first):
        watch.connect("default", ("GPU-a",), company)
    await watch._look(-1, life)
    for _ in range(connections):
        watch.connect("default", ("GPU-a",), company)
        await watch._look(-1, life)
    watch._take(queue)
    assert [each.is_proof for each in told.observations] == [is_proof]


async def test_a_fault_before_the_look_is_told_right_after_it(autojump_clock: trio.testing.MockClock) -> None:
    """With proof, which it has from then on."""
    told, queue = Told(), OneEvent(FATAL, os.eventfd(1))
    watch = watch_of(told, queue, 1)
    found = processes.process_id(os.getpid())
    assert found is not None
    watch.process, watch._is_complete = found, False
    nothing: Any = lambda process, pidfd, have: []  # noqa: E731
    watch.around = WatchParts(nothing, ignore, lambda process: True, INSPECTOR, told, directly, directly, ignore, ignore)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch._listen, queue, trio.CancelScope())
        await trio.sleep(0.1)
        assert not told.observations
        await watch._look(-1, SimpleNamespace(start_soon=ignore))  # type: ignore[arg-type]
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    os.close(queue.descriptor)
    assert [each.is_proof for each in told.observations] == [True]


async def test_a_connection_that_is_linked_again_asks_for_no_context() -> None:
    """mpsd took it for the second one, with which the client's own VA space is there: another's convicted the client."""
    watch = watch_of(Told(), OneEvent(FATAL), 1)
    watch.has_asked, watch._is_complete = False, False
    watch.connect("other", ("GPU-b",), company, is_again=True)
    assert (watch.domain, watch.gpus, watch.connections, watch.has_asked) == ("other", ("GPU-b",), 1, False)
    assert watch._woken.is_set()


async def test_a_client_that_asks_while_mpsd_looks_is_looked_at_again() -> None:
    told = Told()
    watch = watch_of(told, OneEvent(FATAL), 1)

    async def connect_meanwhile(function: Callable[..., object], *args: object) -> object:
        found = function(*args)
        if function is look:
            watch.connect("default", ("GPU-a",), company)
        return found

    nothing = lambda process, pidfd, have: []  # noqa: E731
    parts = WatchParts(nothing, ignore, lambda process: True, INSPECTOR, told, connect_meanwhile, directly, ignore, ignore)  # type: ignore[arg-type]
    watch.around = parts
    await watch._look(-1, SimpleNamespace(start_soon=ignore))  # type: ignore[arg-type]
    assert not watch._is_complete
    watch.around = replace(parts, in_thread=directly)
    await watch._look(-1, SimpleNamespace(start_soon=ignore))  # type: ignore[arg-type]
    assert watch._is_complete


@dataclass
class OneEvent:
    """A queue with one event."""

    event: UvmEvent
    descriptor: int = -1

    def fileno(self) -> int:
        return self.descriptor

    def take(self) -> Taken:
        return Taken((self.event,))

    def hear_served(self) -> None: ...
    def close(self) -> None: ...


def ignore(*words: object) -> None: ...
