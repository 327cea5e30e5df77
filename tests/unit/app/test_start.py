"""Whatever ends a start tells the front end: in the background, the daemon has no other way to reach the user."""

import os
import threading
from collections.abc import Callable

import pytest
import trio.testing

from mpsd.__main__ import main as run_command_line
from mpsd.app import start
from mpsd.app.build import find_devices
from mpsd.config.loading import Invocation
from mpsd.config.options import Config
from mpsd.errors import VendorFailed


def word_of(serve: Callable[[int], object], why: str) -> str:
    """Return what `serve` answers on the descriptor it gets, and ends with this error."""
    reader, writer = os.pipe()
    with open(reader) as end:
        with pytest.raises((RuntimeError, MemoryError), match=why):
            serve(writer)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.close(writer)
        return end.read()


def test_a_daemon_that_gets_no_thread_for_its_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-d` printed that it ended without a word, and pointed to a log that had none either."""

    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(start, "open_journal", refused)
    said = word_of(lambda ready: start.main(Config(), Invocation(ready_fd=ready)), "new thread")
    assert said.startswith("1\nmpsd failed: RuntimeError(\"can't start new thread\")")


def test_a_daemon_that_ends_before_it_has_a_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("mpsd.config.loading.load", exhausted)
    said = word_of(lambda ready: run_command_line(["serve", "--background", "--ready-fd", str(ready)]), "no more")
    assert said == "1\nmpsd failed: MemoryError('no more')\n"


async def test_an_nvml_that_hangs_ends_the_start_with_the_reason_before_systemd_does(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A start waited without end and without a word; systemd killed it after 90 s, and named no reason either."""
    answers = threading.Event()
    monkeypatch.setattr("mpsd.gpu.nvml.read_devices", lambda *_: answers.wait())
    try:
        with pytest.raises(VendorFailed, match="NVML has not answered for 80 seconds"), trio.move_on_after(89):
            await find_devices(Config())
    finally:
        answers.set()
