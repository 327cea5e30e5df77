"""A function runs in a thread as soon as the machine has one: without, mpsd waits and does not end."""

import threading

import pytest
import trio
import trio.testing

from mpsd.threads import run_in_thread


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
