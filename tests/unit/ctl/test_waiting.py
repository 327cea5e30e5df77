"""The line on a terminal while mpsd has not answered."""

import threading
from io import StringIO

import pytest
from mpsctl import waiting

from tests.unit.ctl.console import Terminal


class Watched(Terminal):
    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        self.was_written.set()
        return super().write(text)


def test_a_long_wait_is_counted_and_then_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "AFTER_SECONDS", 0.01)
    stderr = Watched()
    with waiting.shown_wait("service.handover", stderr):
        assert stderr.was_written.wait(20)
    line, blank = stderr.getvalue().split("\r")[1:3]
    assert line == "waiting for mpsd's answer to service.handover: 0 s"
    assert blank == " " * len(line)


def test_a_short_wait_is_silent() -> None:
    stderr = Terminal()
    with waiting.shown_wait("status", stderr):
        pass
    assert stderr.getvalue() == ""


def test_a_program_that_reads_the_errors_gets_no_line() -> None:
    before = threading.active_count()
    with waiting.shown_wait("status", StringIO()):
        assert threading.active_count() == before
