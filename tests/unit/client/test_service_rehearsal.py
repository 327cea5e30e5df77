"""A rehearsal from the service's side: when a step runs, what is restored, and what ends it. The memory during a rehearsal:
tests/integration/test_rehearsals.py."""

import logging
import os
import random
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client import Service
from mpsd_client._capturing import capturing
from mpsd_client._rehearsal import kept_generators

from tests.unit.client.fake_mpsd import FakeArena, FakeMpsd, Waiting
from tests.unit.client.service_fixtures import answering_mpsd, arena_of_all, open_service, serve, until  # noqa: F401


def test_a_step_runs_three_times_on_copies_before_the_member_is_ready(
    mpsd: FakeMpsd, service: Service, arena: FakeArena
) -> None:
    runs: list[bool] = []
    assert service.rehearse(lambda: runs.append(arena._is_rehearsing))
    assert runs == [True, True, True]
    assert service.rehearse(lambda: runs.append(arena._is_rehearsing), writes=["kv"], times=1)
    assert arena.done == ["copies of all", "restored", "copies of ['kv']", "restored"]
    assert not mpsd.count("service.ready")
    serve(mpsd, service)


def test_an_empty_arena_has_nothing_to_rehearse_with(service: Service, arena: FakeArena) -> None:
    arena.layout = None
    assert not service.rehearse(pytest.fail)
    assert arena.done == []


def test_the_active_rehearses_nothing(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """Its memory is the real one, so it must not rehearse."""
    serve(mpsd, service)
    assert not service.rehearse(pytest.fail)
    assert arena.done == ["promoted 4"]


def test_nobody_rehearses_while_another_thread_waits(mpsd: FakeMpsd, service: Service) -> None:
    waiting = Waiting(lambda: service.standby(20))
    mpsd.wait_for("service.ready")
    with pytest.raises(RuntimeError, match="waits for that, or rehearses already"):
        service.rehearse(pytest.fail)
    mpsd.tell("serve", generation=4, writer_pid=os.getpid())
    assert waiting.get() is not None


def test_a_commit_is_rehearsed_by_who_waits(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    found: list[bool] = []
    service.on_commit(lambda _: found.append(service.rehearse(lambda: None)))
    arena.next_layout = b"other weights"
    waiting = Waiting(lambda: service.standby(20))
    mpsd.wait_for("service.ready")
    mpsd.tell(commit=2)
    until(lambda: found)
    mpsd.tell("serve", generation=4, commit=2, writer_pid=os.getpid())
    assert waiting.get() is not None
    assert found == [True]
    assert arena.done == ["refresh", "copies of all", "restored", "promoted 4"]


def test_a_promotion_ends_it_after_the_run(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    runs: list[int] = []
    assert service.standby(timeout=0) is None  # it is ready, so it can be promoted
    following = service._following
    assert following is not None

    def step() -> None:
        runs.append(1)
        mpsd.tell("serve", generation=4, writer_pid=os.getpid())
        until(lambda: following.told.what.order == "serve")

    assert not service.rehearse(step)
    assert len(runs) == 1
    assert arena.done == ["copies of all", "restored"]
    term = service.standby(20)
    assert term is not None
    assert term.generation == 4


def test_a_step_that_raises_is_not_tried_again_and_the_memory_is_restored(
    mpsd: FakeMpsd, service: Service, arena: FakeArena
) -> None:
    state = random.getstate()

    def step() -> None:
        random.random()
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        service.rehearse(step)
    assert arena.done == ["copies of all", "restored"]
    assert random.getstate() == state
    serve(mpsd, service)


def test_without_room_it_is_logged_and_the_member_stands_by(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, caplog: pytest.LogCaptureFixture
) -> None:
    arena.trouble = MemoryError("copies take 7.00 GiB, more than half of the free 9.00 GiB")
    with caplog.at_level(logging.WARNING, logger="mpsd_client"):
        assert not service.rehearse(pytest.fail)
    assert [each.message for each in caplog.records] == [
        "the step on arena llm was not rehearsed, its first run will be slow: copies take 7.00 GiB, more than half of the free "
        "9.00 GiB; name what it writes: writes=[...]"
    ]
    arena.trouble = None
    serve(mpsd, service)


def test_a_capture_in_a_rehearsal_leaves_the_copies_writable(service: Service, arena: FakeArena) -> None:
    def step() -> None:
        arena.is_unlocked = True  # as the copies are
        with capturing():
            assert arena.is_unlocked
        assert arena.is_unlocked

    assert service.rehearse(step, times=1)


def test_a_closed_service_is_not_rehearsed(service: Service) -> None:
    service.close()
    with pytest.raises(RuntimeError, match="is closed"):
        service.rehearse(pytest.fail)


def test_another_threads_close_ends_it(service: Service) -> None:
    runs: list[int] = []

    def step() -> None:
        runs.append(1)
        closing = threading.Thread(target=service.close)
        closing.start()
        closing.join(10)

    assert not service.rehearse(step)
    assert len(runs) == 1


class Generator:
    def __init__(self) -> None:
        self.state = 1

    def get_state(self) -> int:
        return self.state

    def set_state(self, state: int) -> None:
        self.state = state


@pytest.mark.parametrize("has_begun", [True, False])
def test_generators_are_restored_as_far_as_they_are_there(has_begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a GPU cannot be asked before CUDA has begun: it would begin it."""
    cpu, gpu, numbers = Generator(), Generator(), Generator()
    cuda = SimpleNamespace(is_initialized=lambda: has_begun, default_generators=(gpu,))
    torch: Any = SimpleNamespace(default_generator=cpu, cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "numpy", SimpleNamespace(random=numbers))
    state = random.getstate()
    with kept_generators():
        random.random()
        cpu.state = gpu.state = numbers.state = 2
    assert random.getstate() == state
    assert (cpu.state, numbers.state, gpu.state) == (1, 1, 1 if has_begun else 2)
