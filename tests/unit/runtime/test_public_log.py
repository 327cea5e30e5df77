"""control.log and server.log where they cannot be opened for a while."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpsd.runtime import public_log
from mpsd.runtime.public_log import PublicLog


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def log(tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[PublicLog]:
    """Return a log that tries again at each line."""
    monkeypatch.setattr(public_log, "_AGAIN_SECONDS", 0.0)
    made = PublicLog(tmp_path / "log", "/pipe", False, lambda event, **facts: told.append({"event": event, **facts}))
    yield made
    made.close()


def block(directory: Path) -> None:
    """Replace the directory by a file."""
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    directory.touch()


def test_files_that_could_not_be_opened_are_tried_again(log: PublicLog, tmp_path: Path, told: list[dict[str, Any]]) -> None:
    """They stayed closed until SIGHUP."""
    directory = tmp_path / "log"
    log.write("before")
    block(directory)
    for _ in range(3):
        log.write("lost")
    assert ([each["event"] for each in told], log.lost) == (["log.unwritable"], 3)
    log.reopen()
    assert len(told) == 2, "SIGHUP tells it again"
    directory.unlink()
    log.write("after")
    assert (directory / "control.log").read_text().endswith("] after\n")
    assert (directory / "server.log").exists()
    assert told[2:] == [{"event": "log.lines_lost", "file": str(directory), "lines": 3}]
    assert log.lost == 0


def test_between_attempts_some_seconds_pass(log: PublicLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_log, "_AGAIN_SECONDS", 3600.0)
    block(tmp_path / "log")
    log.write("lost")
    (tmp_path / "log").unlink()
    log.write("lost")
    assert not (tmp_path / "log").exists()
    log.reopen()
    log.write("after")
    assert "after" in (tmp_path / "log" / "control.log").read_text()
