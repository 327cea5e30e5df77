"""The end of a client: held as long as it helps somebody, and let go then."""

from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from mpsd.uvm.standing import ShieldState
from tests.unit.uvm.house import WATCHED, FakeClient, Told, attachments, company, directly, nobody, start, until


async def test_one_that_was_killed_is_held_for_its_time(tmp_path: Path, client: FakeClient, told: Told, mock_clock) -> None:
    made, asked = attachments(tmp_path, told, in_thread=directly, hold_seconds=2.0), trio.Event()

    def has_company() -> bool:
        asked.set()
        return True

    client.begin()
    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await start(nursery, made, client, has_company)
            await until(lambda: made.standing(client.process) == WATCHED)
            client.kill()
            await asked.wait()
            mock_clock.jump(1.9)
            await trio.testing.wait_all_tasks_blocked()
            assert (client.is_held, made.count) == (True, 1)
            mock_clock.jump(0.2)
            await until(lambda: made.count == 0)
            assert not client.is_held
            nursery.cancel_scope.cancel()
    told_by_log = [(line["event"], line.get("ended"), line.get("seconds")) for line in lines]
    assert told_by_log == [("uvm.held", "signal 9", None), ("uvm.released", None, 2.1)]


@pytest.mark.parametrize("words", ["exit 0", "exit 3"])
async def test_one_that_ends_by_itself_is_let_go_at_once(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock, words: str
) -> None:
    """The clock stands still."""
    made = attachments(tmp_path, told, in_thread=directly)
    client.begin()
    async with trio.open_nursery() as nursery:
        await start(nursery, made, client)
        await until(lambda: made.standing(client.process) == WATCHED)
        client.end(words)
        await until(lambda: made.count == 0)
        assert not client.is_held
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("why", ["alone", "released", "faulted", "not asked for"])
async def test_one_that_was_killed_is_let_go_at_once_where_holding_helps_nobody(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock, why: str
) -> None:
    made = attachments(tmp_path, told, in_thread=directly, hold=why != "not asked for")
    client.begin()
    async with trio.open_nursery() as nursery:
        await start(nursery, made, client, nobody if why == "alone" else company)
        await until(lambda: made.standing(client.process).shield is ShieldState.ON)
        if why == "released":
            made.release(client.process)
        if why == "faulted":
            client.ask("fault 6 0x1000 1 1 1")
        client.kill()
        await until(lambda: made.count == 0)
        assert not client.is_held
        nursery.cancel_scope.cancel()
    assert len(told.observations) == (why == "faulted")  # what it did last is told


async def test_holding_ends_when_the_last_of_the_others_goes(
    tmp_path: Path, client: FakeClient, told: Told, mock_clock
) -> None:
    made, others = attachments(tmp_path, told, in_thread=directly, hold_seconds=60.0), [1]
    client.begin()
    async with trio.open_nursery() as nursery:
        await start(nursery, made, client, lambda: bool(others))
        await until(lambda: made.standing(client.process) == WATCHED)
        client.kill()
        client.wait_for_end()
        await trio.testing.wait_all_tasks_blocked()
        assert client.is_held
        others.clear()
        mock_clock.jump(0.1)
        await until(lambda: made.count == 0)
        nursery.cancel_scope.cancel()
