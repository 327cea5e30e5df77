"""Signals, changes and the outbox: order, errors, and who runs first."""

from functools import partial

import pytest
import trio
import trio.testing

from mpsd.notify import Changed, Outbox, Signal
from tests.running import running


def test_subscribers_are_called_in_the_order_of_their_subscription():
    told: list[object] = []
    signal = Signal[[int, str]]()
    signal.emit(0, "before any subscription")
    signal.subscribe(lambda number, text: told.append(number), lambda number, text: told.append(text))
    signal.subscribe(lambda number, text: told.append(number + 1))
    signal.emit(1, "text")
    assert told == [1, "text", 2]


def test_an_error_of_a_subscriber_reaches_the_sender():
    signal = Signal[[]]()
    signal.subscribe(lambda: int("none"))
    with pytest.raises(ValueError, match="none"):
        signal.emit()


def test_a_subscriber_may_subscribe_another_which_gets_the_next_value():
    told: list[int] = []
    signal = Signal[[int]]()
    signal.subscribe(lambda number: signal.subscribe(told.append))
    signal.emit(1)
    assert told == []
    signal.emit(2)
    assert told == [2]


async def test_a_change_wakes_all_tasks_that_wait_for_one(autojump_clock):
    changed, woken = Changed(), []

    async def wait(name: str) -> None:
        await changed.wait()
        woken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "a")
        nursery.start_soon(wait, "b")
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        changed.notify()
    assert sorted(woken) == ["a", "b"]


# -- what can wait -----------------------------------------------------------------------------------------------------


def test_calls_run_at_once_and_in_order_also_those_that_a_call_puts():
    told: list[str] = []
    outbox = Outbox()

    def first() -> None:
        outbox.put(lambda: told.append("put by the first"))
        told.append("first")

    outbox.put(first)
    outbox.put(lambda: told.append("second"))
    assert told == ["first", "put by the first", "second"]


def test_held_calls_run_at_the_end_of_the_outermost_hold():
    told: list[int] = []
    outbox = Outbox()
    with outbox.hold():
        outbox.put(lambda: told.append(1))
        with outbox.hold():
            outbox.put(lambda: told.append(2))
        outbox.put(lambda: told.append(3))
        assert told == []
    assert told == [1, 2, 3]


def test_a_call_that_fails_is_loud_and_the_next_ones_run_later():
    told: list[int] = []
    outbox = Outbox()
    with pytest.raises(ZeroDivisionError):
        outbox.put(lambda: (outbox.put(lambda: told.append(2)), told.append(1 // 0)))  # type: ignore[func-returns-value]
    outbox.put(lambda: told.append(3))
    assert told == [2, 3]


async def test_a_task_that_was_answered_runs_first(autojump_clock):
    """One breath for all: a member that is promoted again and again does not keep the incidents from being judged."""
    told: list[object] = []
    outbox = Outbox()
    outbox.answer_first()
    outbox.put(lambda: told.append("before it runs"))
    assert told == ["before it runs"]
    async with running(outbox.run):
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        with outbox.hold():
            outbox.answer_first()
        outbox.put(lambda: told.append(trio.current_time()))
        await trio.sleep(0.0005)
        outbox.answer_first()
        outbox.put(lambda: told.append(trio.current_time()))
        await trio.sleep(0.01)
        assert told[1:] == [pytest.approx(began + 0.001)] * 2
        outbox.put(lambda: told.append("at once"))
        assert told[-1] == "at once"


async def test_a_full_outbox_waits_for_no_answer(autojump_clock):
    told: list[int] = []
    outbox = Outbox()
    async with running(outbox.run):
        await trio.testing.wait_all_tasks_blocked()
        outbox.answer_first()
        for number in range(5000):
            outbox.put(partial(told.append, number))
        assert told == list(range(5000 - 4096))
    assert len(told) == 5000 - 4096
