"""The loop that `@service.step` saves a program from writing: its order, its ends, and the same under trio."""

import os
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from mpsd_client import Service, State
from mpsd_client import _stepping as module

from tests.unit.client.fake_mpsd import FIELDS, FakeArena, FakeMpsd, Waiting
from tests.unit.client.service_fixtures import answering_mpsd, arena_of_all, open_service  # noqa: F401

Values = Mapping[str, Any]


def promote(mpsd: FakeMpsd, generation: int = 4) -> None:
    mpsd.wait_for("service.ready")
    mpsd.tell("serve", generation=generation, writer_pid=os.getpid())


class Steps:
    """A step that counts to an end, and what it was called with in rehearsals and in terms."""

    def __init__(self, service: Service, arena: FakeArena, end: int = 45) -> None:
        self.arena, self.end = arena, end
        self.rehearsed: list[object] = []
        self.found: list[object] = []
        service.step(self)

    def __call__(self, arena: object, last: Values | None) -> Values | None:
        assert arena is self.arena
        step = last["step"] if last else 0
        (self.rehearsed if self.arena._is_rehearsing else self.found).append(step)
        return {"step": step + 1} if step < self.end else None


def test_it_adopts_rehearses_serves_from_the_last_record_and_closes(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    steps, answers, adopted = Steps(service, arena), list[Values](), list[object]()
    service.on_commit(adopted.append)
    with State.create(FIELDS, generation=3) as before:
        before.publish(step=42, name="a")
        mpsd.keep(before)
        waiting = Waiting(lambda: service.serve(answers.append, writes=["kv"]))
        promote(mpsd)
        waiting.get()
    assert adopted == [arena]
    assert len(steps.rehearsed) == 3
    assert arena.done[:3] == ["copies of ['kv']", "restored", "promoted 4"]
    assert steps.found == [42, 43, 44, 45]
    assert answers == [{"step": 43}, {"step": 44}, {"step": 45}]
    with pytest.raises(RuntimeError, match="is closed"):
        service.standby()


def test_an_answer_follows_its_publish(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    Steps(service, arena, end=3)
    seen: list[tuple[int, object]] = []

    def answer(values: Values) -> None:
        assert mpsd.kept is not None
        record = mpsd.kept.read()
        assert record is not None
        seen.append((values["step"], record["step"]))

    waiting = Waiting(lambda: service.serve(answer))
    promote(mpsd)
    waiting.get()
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_a_step_that_waits_for_requests_is_not_rehearsed(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    steps = Steps(service, arena, end=1)
    waiting = Waiting(lambda: service.serve(is_rehearsed=False))
    promote(mpsd)
    waiting.get()
    assert steps.rehearsed == []


def test_the_first_member_builds_and_adopts_what_it_has_built(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    arena.layout = None
    steps, done = Steps(service, arena, end=1), list[str]()
    service.on_commit(lambda _: done.append("adopt"))

    @service.build
    def build(given: object) -> None:
        assert given is arena
        done.append("build")
        arena.layout = b"built"

    waiting = Waiting(service.serve)
    promote(mpsd)
    waiting.get()
    assert done == ["build", "adopt"]
    assert (steps.rehearsed, steps.found) == ([], [0, 1])


def test_an_exception_is_reported_and_raised(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    @service.step
    def step(arena: object, last: object) -> Values:
        if not self_rehearsing():
            raise KeyError("a bug")
        return {}

    def self_rehearsing() -> bool:
        return arena._is_rehearsing

    waiting = Waiting(service.serve)
    promote(mpsd)
    with pytest.raises(KeyError, match="a bug"):
        waiting.get()
    assert "a bug" in str(mpsd.wait_for("service.failed"))


def test_what_is_missing_is_named(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    with pytest.raises(RuntimeError, match=r"no step: register a function with @service\.step"):
        service.serve()
    arena.layout = None
    Steps(service, arena)
    waiting = Waiting(service.serve)
    promote(mpsd)
    with pytest.raises(RuntimeError, match=r"is empty: register a function with @service\.build"):
        waiting.get()


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The contexts of the calling thread that were made current in the thread of the loop: there is no driver here."""
    given: list[int] = []
    real = module._cuda.with_context
    monkeypatch.setattr(module._cuda, "current_context", lambda: 0)
    monkeypatch.setattr(module._cuda, "with_context", lambda each: given.append(each) or real(each))  # type: ignore[func-returns-value]
    return given


async def test_under_trio_the_answers_run_in_the_program_and_the_steps_do_not(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, contexts: list[int]
) -> None:
    steps, threads = Steps(service, arena, end=2), set[int]()

    async def answer(values: Values) -> None:
        await trio.lowlevel.checkpoint()
        threads.add(threading.get_ident())

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: service.serve_async(answer))
            await trio.to_thread.run_sync(promote, mpsd)
    assert steps.found == [0, 1, 2]
    assert threads == {threading.get_ident()}
    assert contexts == [0]


async def test_a_cancelled_standby_leaves(mpsd: FakeMpsd, service: Service, arena: FakeArena, contexts: list[int]) -> None:
    steps = Steps(service, arena)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.serve_async)
            await trio.to_thread.run_sync(mpsd.wait_for, "service.ready")
            nursery.cancel_scope.cancel()
    assert steps.found == []
    assert mpsd.count("service.ready") == 1
    with pytest.raises(RuntimeError, match="is closed"):
        service.standby()


async def test_a_cancelled_active_ends_its_step_first(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, contexts: list[int]
) -> None:
    began, done, may_end = threading.Event(), list[str](), threading.Event()

    @service.step
    def step(arena: object, last: object) -> Values:
        began.set()
        assert may_end.wait(20)
        done.append("stepped")
        return {"step": 1}

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: service.serve_async(is_rehearsed=False))
            await trio.to_thread.run_sync(promote, mpsd)
            await trio.to_thread.run_sync(began.wait, 20)
            nursery.cancel_scope.cancel()
            assert done == []
            may_end.set()
    assert done == ["stepped"]
    with pytest.raises(RuntimeError, match="is closed"):
        service.standby()
