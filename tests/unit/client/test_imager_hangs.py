"""An imager that hangs: its image fails with a reason, and no other imager is started beside it."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import ImageSchedule, _image
from mpsd_client._image import Taking
from mpsd_client._imager import ImageError

from tests.integration.process import wait_for

PLACE = Path("images")
SECONDS = 20.0


class HungImager:
    """Takes requests and never answers.  copies: copies a byte at each look.  to_copy: 0 until it begins."""

    def __init__(self, copies: int = 0, to_copy: int = 100) -> None:
        self.copies, self.to_copy, self.is_alive, self.closed, self.looks = copies, to_copy, True, 0, 0

    def ask(self, request: Any) -> None:
        pass

    def answer(self, kind: str, timeout: float) -> None:
        raise TimeoutError(kind)

    def waits_for_answer(self, seconds: float) -> bool:
        time.sleep(0.001)
        self.looks += 1
        return self.copies > 0 and self.looks > self.copies

    @property
    def progress(self) -> tuple[int, int]:
        return min(self.looks, self.copies), self.to_copy

    def close(self) -> None:
        self.closed += 1


def taking(imager: Any) -> Taking:
    return Taking([], imager, PLACE, "kv.1", "", None, 0)


def test_an_imager_that_copies_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image, "STILL_SECONDS", 0.05)
    imager = HungImager()
    hung = taking(imager)
    with pytest.raises(TimeoutError, match=r"image kv.1: the imager has copied nothing for 0.05 s"):
        hung.wait_for_answer(threading.Event(), 0.001)
    assert hung.has_failed
    assert imager.closed == 1


def test_a_slow_imager_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image, "STILL_SECONDS", 0.0)
    imager = HungImager(copies=50)
    assert taking(imager).wait_for_answer(threading.Event(), 0.001)
    assert imager.looks == 51


def test_an_imager_that_has_not_begun_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a place at MPS, as another one would."""
    monkeypatch.setattr(_image, "STILL_SECONDS", 0.0)
    imager = HungImager(to_copy=0)
    waiting = taking(imager)
    assert not waiting.wait_for_answer(threading.Event(), 0.001, 0.05)
    assert (waiting.has_failed, imager.closed) == (False, 0)


def test_an_imager_that_hangs_in_the_last_sync_of_an_empty_image_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image, "STILL_SECONDS", 0.05)
    hung = taking(HungImager(to_copy=0))
    hung._expected = "complete"  # after the barrier
    with pytest.raises(TimeoutError, match="the imager has copied nothing"):
        hung.wait_for_answer(threading.Event(), 0.001)


@pytest.mark.parametrize("waits_in", ["wait_for_answer", "barrier", "settle"])
def test_none_is_started_beside_one_that_hangs(monkeypatch: pytest.MonkeyPatch, waits_in: str) -> None:
    """At each interval one more process kept a context, and memory of the GPU."""
    monkeypatch.setattr(_image, "STILL_SECONDS", 0.01)
    imager = HungImager()
    hung = taking(imager)
    given = {"wait_for_answer": (threading.Event(), 0.001), "settle": (PLACE, [])}
    with pytest.raises(TimeoutError):
        getattr(hung, waits_in)(*given.get(waits_in, ()))
    with pytest.raises(ImageError, match=r"imager of image kv.1 did not answer in time, and has not ended"):
        hung.settle(PLACE, [])
    imager.is_alive = False
    assert hung.settle(PLACE, []) is None


def test_a_schedule_tells_of_an_imager_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image, "STILL_SECONDS", 0.05)
    monkeypatch.setattr("mpsd_client._schedule.LOOK_SECONDS", 0.001)

    class Arena:
        is_closed = False

        def image(self, directory: object) -> Taking:
            return taking(HungImager())

    arena: Any = Arena()
    schedule = ImageSchedule(0.001)
    schedule.step_done(arena)
    try:
        wait_for("the trouble", lambda: bool(schedule.trouble), SECONDS)
    finally:
        schedule.end()
    assert "the imager has copied nothing" in schedule.trouble
    assert schedule.failed
