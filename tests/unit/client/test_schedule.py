"""Images on a schedule: at an interval, without a pause while the service moves, and a last one at the end of the term."""

import logging
import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mpsd_client import ImageSchedule, _schedule
from mpsd_client._image import Taking
from mpsd_client._imager import ImageError, ImagerProcess
from mpsd_client._term import Term

from tests.integration.process import wait_for

SECONDS = 20.0
NEVER = 3600.0


class FakeTaking:
    has_failed = False

    def __init__(self, arena: "FakeArena") -> None:
        self._arena, self.barriers = arena, 0

    def wait_for_answer(self, stop: threading.Event, seconds: float, limit: float = math.inf) -> bool:
        return not stop.is_set()

    def barrier(self, timeout: float, *, is_waited_for: bool = False) -> None:
        self.barriers += 1
        self.is_waited_for = is_waited_for
        self._arena.had_barrier.release()

    def wait(self) -> str:
        return "an image"


class FakeArena:
    """Each image is prepared at once.  begun, had_barrier: a permit for each."""

    is_closed = False

    def __init__(self) -> None:
        self.takings: list[FakeTaking] = []
        self.begun, self.had_barrier = threading.Semaphore(0), threading.Semaphore(0)

    def image(self, directory: Any) -> FakeTaking:
        self.takings.append(FakeTaking(self))
        self.begun.release()
        return self.takings[-1]


@pytest.fixture
def arena() -> FakeArena:
    return FakeArena()


@pytest.fixture
def schedule(arena: FakeArena) -> Iterator[Any]:
    made: Any = ImageSchedule(NEVER)
    made.step_done(arena)
    yield made
    made.end()


def steps(schedule: Any, arena: FakeArena) -> FakeTaking:
    """Make steps until one has taken a barrier, and return that image."""
    for _ in range(round(SECONDS / 0.01)):
        schedule.step_done(arena)
        if arena.had_barrier.acquire(timeout=0.01):
            return next(each for each in reversed(arena.takings) if each.barriers)
    raise AssertionError("no barrier")


def test_images_follow_each_other_without_a_pause_while_the_service_moves(schedule: Any, arena: FakeArena) -> None:
    assert not arena.begun.acquire(blocking=False)
    schedule.hurry(True, None)
    for _ in range(3):
        steps(schedule, arena)
    assert all(each.barriers == 1 for each in arena.takings[:3])
    schedule.hurry(False, None)


def test_the_last_image_has_its_barrier_after_the_last_step(schedule: Any, arena: FakeArena) -> None:
    prepared = threading.Event()
    schedule.hurry(True, prepared.set)
    assert prepared.wait(SECONDS)
    for _ in range(3):
        schedule.step_done(arena)
    assert [each.barriers for each in arena.takings] == [0], "the program may publish again before it leaves its block"
    assert schedule.take_last() is arena.takings[0]
    assert arena.takings[0].barriers == 1
    assert arena.takings[0].is_waited_for


def test_an_image_that_is_prepared_already_becomes_the_last_one(schedule: Any, arena: FakeArena) -> None:
    schedule.hurry(True, None)
    assert arena.begun.acquire(timeout=SECONDS)
    prepared = threading.Event()
    schedule.hurry(True, prepared.set)
    assert prepared.wait(SECONDS)
    schedule.hurry(True, prepared.set)  # a repeated order
    assert schedule.take_last() is arena.takings[0]


def test_a_cancelled_move_leaves_an_image_like_any_other(schedule: Any, arena: FakeArena) -> None:
    prepared = threading.Event()
    schedule.hurry(True, prepared.set)
    assert prepared.wait(SECONDS)
    schedule.hurry(False, None)
    assert steps(schedule, arena) is arena.takings[0]
    with pytest.raises(ImageError, match="no image was prepared"):
        schedule.take_last()


def test_the_end_of_a_term_ends_the_hurry(schedule: Any, arena: FakeArena) -> None:
    prepared = threading.Event()
    schedule.hurry(True, prepared.set)
    assert prepared.wait(SECONDS)
    schedule.end()
    with pytest.raises(ImageError):
        schedule.take_last()
    schedule.step_done(arena)  # the next term
    assert not arena.begun.acquire(timeout=0.0) or len(arena.takings) == 1


class FakeState:
    def publish(self, **values: Any) -> None:
        pass


def moving_term(schedule: Any, arena: FakeArena) -> Term:
    """Return a term whose last image is prepared for a move."""
    made: Any = Term
    term: Term = made(arena, 1, None, FakeState(), 0, lambda term, error: None, schedule)
    term.obey(True, True)
    wait_for("the last image", lambda: term._is_over, SECONDS)
    return term


def test_a_program_that_has_read_that_its_term_is_over_may_rely_on_it(schedule: Any, arena: FakeArena) -> None:
    """It leaves its block: if the move is cancelled meanwhile, the term must not seem to end unasked, which closes the service,
    and means that the work is done."""
    term = moving_term(schedule, arena)
    assert term.is_over
    term.obey(False, False)
    assert term.is_over
    assert term.take_last() == (None, "the move was cancelled before")


def test_a_move_that_is_cancelled_before_the_program_knew_of_it_leaves_the_term_as_it_was(
    schedule: Any, arena: FakeArena
) -> None:
    term = moving_term(schedule, arena)
    term.obey(False, False)
    assert not term.is_over
    assert term.take_last() == (None, None)


def test_without_mpsd_images_do_not_follow_each_other_for_ever(schedule: Any, arena: FakeArena) -> None:
    made: Any = Term
    term: Term = made(arena, 1, None, FakeState(), 0, lambda term, error: None, schedule)
    term.obey(False, True)
    assert arena.begun.acquire(timeout=SECONDS)
    steps(schedule, arena)
    assert arena.begun.acquire(timeout=SECONDS)
    term.calm()
    steps(schedule, arena)  # the one that was begun before
    begun = len(arena.takings)
    for _ in range(20):
        schedule.step_done(arena)
        assert not arena.had_barrier.acquire(timeout=0.01)
    assert len(arena.takings) == begun == 2


def test_an_imager_that_waits_for_a_place_is_reported_and_keeps_its_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under a lease of its cgroup for one process a program never had an image, and nothing said so."""
    ours, imager = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taking: Any = Taking.__new__(Taking)
    taking._imager, taking._expected = ImagerProcess.__new__(ImagerProcess), "prepared"
    taking._imager._socket, taking._imager._progress = ours, -1
    monkeypatch.setattr(_schedule, "START_SECONDS", 0.01)
    monkeypatch.setattr(_schedule, "LOOK_SECONDS", 0.01)
    schedule, stop = ImageSchedule(NEVER), threading.Event()
    found: list[bool] = []
    with ours, imager, caplog.at_level(logging.WARNING, "mpsd_client"):
        waiting = threading.Thread(target=lambda: found.append(schedule._wait_prepared(taking, stop)))
        waiting.start()
        wait_for("the report", lambda: schedule.trouble)
        assert "it may wait for a place at MPS" in caplog.text
        assert (found, schedule.failed) == ([], 0)
        imager.send(b"it is prepared")
        waiting.join(SECONDS)
    assert found == [True]
