"""The end of a client: its descriptors are held as long as that helps a co-runner, and closed then."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from mpsd.host.rules.descriptor_budget import MOST_SPACES
from mpsd.model.client import ShieldState
from mpsd.model.fault import FaultClass, Source
from mpsd.model.process import ProcessId
from mpsd.uvm.attachments import _THREADS_OF_USER
from mpsd.uvm.simulator import SimulatedDevices
from mpsd.uvm.space import Space
from mpsd.uvm.status import UvmSettings
from tests.inspecting import INSPECTOR
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

DEADLINE_SECONDS = 10.0


async def test_one_that_was_killed_is_held_for_its_time(tmp_path: Path, client: FakeClient, told: Told, mock_clock) -> None:
    made, asked = attachments(tmp_path, told, in_thread=directly, hold_seconds=2.0), trio.Event()

    def has_company() -> bool:
        asked.set()
        return True

    client.begin()
    with structlog.testing.capture_logs() as lines:
        async with attached(made, client, has_company):
            await until(lambda: made.standing(client.process) == WATCHED)
            client.kill()
            await asked.wait()
            mock_clock.jump(1.9)
            await trio.testing.wait_all_tasks_blocked()
            assert (client.is_held, made.count) == (True, 1)
            mock_clock.jump(0.2)
            await until(lambda: made.count == 0)
            await until(lambda: not client.is_held)
    told_by_log = [(line["event"], line.get("ended"), line.get("seconds")) for line in lines]
    assert told_by_log == [("uvm.held", "signal 9", None), ("uvm.released", None, 2.1)]
    (seen,) = told.observations  # the work that is no longer held can end the others
    assert (seen.source, seen.fault_class, seen.process) == (Source.PROCESS, FaultClass.HOST, client.process)


@pytest.mark.parametrize("words", ["exit 0", "exit 3"])
async def test_one_that_ends_by_itself_is_let_go_at_once(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock, words: str
) -> None:
    """The clock stands still."""
    made = attachments(tmp_path, told, in_thread=directly)
    client.begin()
    async with attached(made, client):
        await until(lambda: made.standing(client.process) == WATCHED)
        client.end(words)
        await until(lambda: made.count == 0)
        await until(lambda: not client.is_held)  # a child of this process has it until it executes


@pytest.mark.parametrize("why", ["alone", "released", "faulted", "not asked for"])
async def test_one_that_was_killed_is_let_go_at_once_where_holding_helps_nobody(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock, why: str
) -> None:
    made = attachments(tmp_path, told, in_thread=directly, hold=why != "not asked for")
    client.begin()
    async with attached(made, client, nobody if why == "alone" else company):
        await until(lambda: made.standing(client.process).shield is ShieldState.ON)
        if why == "released":
            made.release(client.process)
        if why == "faulted":
            client.ask("fault 6 0x1000 1 1 1")
        client.kill()
        await until(lambda: made.count == 0)
        await until(lambda: not client.is_held)
    assert len(told.observations) == (why == "faulted")  # its last action is reported


async def test_holding_ends_when_the_last_of_the_others_goes(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock
) -> None:
    made, others = attachments(tmp_path, told, in_thread=directly, hold_seconds=60.0), [1]
    client.begin()
    async with attached(made, client, lambda: bool(others)):
        await until(lambda: made.standing(client.process) == WATCHED)
        client.kill()
        client.wait_for_end()
        await trio.testing.wait_all_tasks_blocked()
        assert client.is_held
        others.clear()
        mock_clock.jump(0.1)
        await until(lambda: made.count == 0)
    assert not told.observations


class Driver:
    """Keeps each thread that closes a space waiting until `may_close` is set, and notes which threads closed one."""

    def __init__(self) -> None:
        self.may_close = threading.Event()
        self.waiting = 0
        self.closed_by: list[threading.Thread] = []

    def open_spaces(self, process: ProcessId, pidfd: int, have: Sequence[Space]) -> list[Space]:
        return [] if have else [SlowSpace(driver=self)]

    def close(self) -> None:
        thread = threading.current_thread()
        if thread is not threading.main_thread():  # the event loop runs in the main one, which would never set it
            self.waiting += 1
            self.may_close.wait(60)
        self.closed_by.append(thread)


@dataclass
class SlowSpace(FakeSpace):
    driver: Driver | None = None

    def close(self) -> None:
        assert self.driver
        self.driver.close()


async def test_a_slow_driver_never_keeps_the_event_loop(tmp_path: Path, told: Told, mock_clock) -> None:
    """Twelve clients die at once, and the driver closes none for twenty seconds: no close moves to the event loop, and a
    newcomer is attached meanwhile."""
    driver = Driver()
    made = watching(UvmSettings(events=False, shield="off", hold_seconds=0), driver.open_spaces, INSPECTOR, told)
    with ExitStack() as clients:
        dying = [clients.enter_context(a_client(tmp_path)) for _ in range(12)]
        async with attached(made, dying[0]):
            for each in dying[1:]:
                made.watch(each.process, "default", (GPU,), company)
            await until(lambda: all(made.standing(each.process).held for each in dying))
            for each in dying:
                each.kill()
            await until(lambda: driver.waiting == 8)
            mock_clock.jump(20)
            await trio.testing.wait_all_tasks_blocked(0.01)
            newcomer = clients.enter_context(a_client(tmp_path))
            made.watch(newcomer.process, "default", (GPU,), company)
            await until(lambda: made.standing(newcomer.process).held)
            assert (made.count, driver.closed_by) == (13, [])
            driver.may_close.set()
            await until(lambda: made.count == 1)
    assert len(driver.closed_by) == 13
    assert threading.main_thread() not in driver.closed_by


@pytest.mark.parametrize(("late_seconds", "told_ends"), [(0.0, [("d1", False)]), (0.1, [])], ids=["in time", "late"])
async def test_a_client_without_a_shield_counts_as_one_without_a_context_only_if_mpsd_tried_in_time(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock, late_seconds: float, told_ends: list[tuple[str, bool]]
) -> None:
    """A busy mpsd took three jobs of a tenth of a second for failures, and replaced a healthy domain: 14 times in 500 jobs."""
    ends: list[tuple[str, bool]] = []
    made = watching(
        UvmSettings(), SimulatedDevices(tmp_path, INSPECTOR).open_spaces, INSPECTOR, told,
        in_thread=directly,
    )  # fmt: skip
    made.client_ended.subscribe(lambda process, *end: ends.append(end))
    client.ask("open")
    async with attached(made, client, nobody):
        await until(lambda: made.standing(client.process).shield is ShieldState.WAITING)
        made.watch(client.process, "d1", (GPU,), nobody)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(late_seconds)
        client.kill()
        await until(lambda: made.count == 0)
        assert ends == told_ends


async def test_one_that_ends_while_mpsd_waits_to_close_its_descriptors_leaves_none(
    tmp_path: Path, client: FakeClient, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the most that mpsd holds stayed open for ever where its user's other closings took long."""
    monkeypatch.setattr("mpsd.uvm.client_watch._LEAVE_SECONDS", 0.0)
    made, over, asked = attachments(tmp_path, told), threading.Event(), trio.Event()

    def has_company() -> bool:
        asked.set()
        return False

    client.begin()
    async with trio.open_nursery() as others, attached(made, client, has_company):
        await until(lambda: made.standing(client.process) == WATCHED)
        share = made._shares[client.process]
        for _ in range(_THREADS_OF_USER):
            others.start_soon(made._closings.run, share, over.wait, DEADLINE_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        client.ask(f"swap {MOST_SPACES + 2}")
        made.watch(client.process, "default", (GPU,), has_company)
        await until(lambda: made._closings._own[share].statistics().tasks_waiting == 1)
        client.kill()
        await asked.wait()
        over.set()
        await until(lambda: made.count == 0)
        assert str(client.space) not in open_files()


def open_files() -> set[str]:
    """Return what this process's descriptors lead to."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing
            found.add(str(each.readlink()))
    return found
