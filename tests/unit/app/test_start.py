"""Whatever ends a start tells the front end: in the background, the daemon has no other way to reach the user."""

import os
from collections.abc import Callable

import pytest

from mpsd.__main__ import main as run_command_line
from mpsd.app import start
from mpsd.config.loading import Invocation
from mpsd.config.options import Config


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
