"""A program that has no thread left, as by the limit of its cgroup: its steps and its service go on."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import ImageSchedule

from tests.unit.client.test_imager_start import Imager, gate  # noqa: F401
from tests.unit.client.test_replica_end import FakeMpsd, replica
from tests.unit.client.test_schedule import FakeArena, steps


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")  # as CPython says it


def test_a_step_without_a_thread_for_images_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the active's publish that calls it: an exception would end the term, and that of each standby in turn."""
    schedule, arena = ImageSchedule(0.01), FakeArena()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_thread)
        for _ in range(3):
            schedule.step_done(arena)  # type: ignore[arg-type]
    assert (schedule.failed, schedule.trouble) == (1, "can't start new thread")
    assert steps(schedule, arena).barriers == 1, "a later step begins the schedule"
    schedule.end()


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # what close() cannot wait for
def test_an_imager_is_let_go_without_a_thread(gate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    imager = Imager([{"arena": "model"}], tmp_path / "images")
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    imager.close()
    pid = imager._process.pid
    del imager
    gate.write_text("start\n")  # it reads the end of its socket, and ends
    end = time.monotonic() + 20
    while any(each.pid == pid for each in subprocess._active):  # type: ignore[attr-defined]
        assert time.monotonic() < end, "nobody has reaped it"
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_replica_that_serves_is_completed_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    mpsd: Any = FakeMpsd()
    made = replica(monkeypatch, mpsd)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert not made.complete()
    assert mpsd.said == ["arena.commit", "arena.change"]
    assert made._source is None, "its imager is let go"
