"""A function runs in a thread as soon as the machine has one; without, mpsd waits.  One user's work takes few threads."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from mpsd.threads import UserThreads, run_in_thread


async def test_without_a_thread_the_caller_waits_for_one(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    refusals = [RuntimeError("can't start new thread")] * 3
    run_sync = trio.to_thread.run_sync

    async def run(*args: object, **options: object) -> object:
        if refusals:
            raise refusals.pop()
        return await run_sync(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.to_thread, "run_sync", run)
    assert await run_in_thread(divmod, 7, 2) == (3, 1)
    assert not refusals


async def test_a_caller_that_waits_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
    with trio.move_on_after(5) as waiting:
        await run_in_thread(threading.get_ident)
    assert waiting.cancelled_caught


async def test_the_functions_own_error_is_the_callers() -> None:
    calls = []

    def fail() -> None:
        calls.append(threading.get_ident())
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        await run_in_thread(fail)
    assert len(calls) == 1
    assert calls[0] != threading.get_ident()


async def test_one_users_work_takes_few_threads() -> None:
    running: list[int] = []
    go_on = trio.Event()

    async def in_thread(function: Callable[[int], None], share: int) -> None:
        function(share)
        await go_on.wait()

    threads = UserThreads(2, in_thread)
    async with trio.open_nursery() as nursery:
        for share in (1000, 1000, 1000, 1001):
            nursery.start_soon(threads.run, share, running.append, share)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(running) == [1000, 1000, 1001]
        go_on.set()
    assert sorted(running) == [1000, 1000, 1000, 1001]
    assert not threads._own, "a user without work leaves nothing"
