"""control.log and server.log where they cannot be opened for a while."""

import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mpsd.domains import public_log
from mpsd.domains.public_log import PublicLog
from mpsd.log.sink import QUEUED_LINES
from tests.integration.process import EVENT_SECONDS, wait_for


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


def wait_for_line(directory: Path, text: str) -> None:
    file = directory / "control.log"
    wait_for(text, lambda: file.exists() and file.read_text().endswith(f"] {text}\n"))


def block(directory: Path) -> None:
    """Replace the directory by a file."""
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    directory.touch()


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_files_that_could_not_be_opened_are_tried_again(log: PublicLog, tmp_path: Path, told: list[dict[str, Any]]) -> None:
    """They stayed closed until SIGHUP."""
    directory = tmp_path / "log"
    log.write("before")
    wait_for_line(directory, "before")
    block(directory)
    for _ in range(3):
        log.write("lost")
    wait_for("the loss", lambda: log.lost == 3)
    assert [each["event"] for each in told] == ["log.unwritable"]
    log.reopen()
    wait_for("SIGHUP to tell it again", lambda: len(told) == 2)
    directory.unlink()
    log.write("after")
    wait_for_line(directory, "after")
    assert (directory / "server.log").exists()
    assert told[2:] == [{"event": "log.lines_lost", "file": str(directory), "lines": 3}]
    assert log.lost == 0


def test_others_read_no_log(tmp_path: Path) -> None:
    """A direct read of a file into memory that never answers keeps the file's lock: the next line waited, and logrotate."""
    for name, mode in (("control.log", 0o644), ("server.log", 0o600)):  # an earlier mpsd's; an operator's choice
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    log = PublicLog(tmp_path, "/pipe", False, print)
    log.write("line")
    wait_for_line(tmp_path, "line")
    assert [mode_of(tmp_path / name) for name in ("control.log", "server.log")] == [0o640, 0o600]
    (tmp_path / "control.log").unlink()
    log.write("anew")
    wait_for_line(tmp_path, "anew")
    assert mode_of(tmp_path / "control.log") == 0o640
    log.close()


def test_a_file_of_another_user_is_written(
    log: PublicLog, tmp_path: Path, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode stays; mpsd reported that it cannot be opened, and never which lines were lost before."""
    directory = tmp_path / "log"
    block(directory)
    log.write("lost")
    wait_for("the loss", lambda: log.lost == 1)

    def fail(descriptor: int, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(public_log.os, "fchmod", fail)
    directory.unlink()
    directory.mkdir()
    (directory / "control.log").touch()
    (directory / "control.log").chmod(0o644)
    log.write("after")
    wait_for_line(directory, "after")
    wait_for("the report", lambda: len(told) == 2)
    assert [each["event"] for each in told] == ["log.unwritable", "log.lines_lost"]


def test_between_attempts_some_seconds_pass(log: PublicLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_log, "_AGAIN_SECONDS", 3600.0)
    block(tmp_path / "log")
    log.write("lost")
    wait_for("the loss", lambda: log.lost == 1)
    (tmp_path / "log").unlink()
    log.write("lost")
    wait_for("the loss", lambda: log.lost == 2)
    assert not (tmp_path / "log").exists()
    log.reopen()
    log.write("after")
    wait_for_line(tmp_path / "log", "after")


@pytest.mark.parametrize("call", ["close", "fstat"])
def test_an_error_of_a_file_server_ends_no_log(
    log: PublicLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """ENOSPC at close, ESTALE at fstat, as NFS has them: the thread ended, and each later line was lost."""
    log.write("before")
    wait_for_line(tmp_path / "log", "before")
    real, failures = getattr(os, call), list[int]()
    files = {log._files["control.log"]}

    def fail(descriptor: int) -> object:
        found = real(descriptor)
        if descriptor in files:
            files.remove(descriptor)
            failures.append(descriptor)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return found

    monkeypatch.setattr(public_log.os, call, fail)
    if call == "close":
        log.reopen()
    log.write("after")
    wait_for_line(tmp_path / "log", "after")
    assert failures


def test_no_caller_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop did: for up to 85 ms on a disk that others keep busy."""
    may_write, write = threading.Event(), os.write

    def wait(descriptor: int, data: bytes) -> int:
        assert may_write.wait(EVENT_SECONDS)
        return write(descriptor, data)

    log = PublicLog(tmp_path, "/pipe", False, lambda event, **facts: None)
    monkeypatch.setattr(public_log.os, "write", wait)
    for number in range(QUEUED_LINES + 100):
        log.write(str(number))
    assert 100 > log.lost > 0, "one that is being written is not in the queue"
    may_write.set()
    log.close()
    assert (tmp_path / "control.log").read_text().splitlines()[0].endswith("] 0")


async def test_what_waits_for_a_line_acts_once_it_is_in_the_file(log: PublicLog, tmp_path: Path) -> None:
    found: list[str] = []
    acted = trio.Event()

    def act() -> None:
        found.append((tmp_path / "log/control.log").read_text())
        acted.set()

    log.write("a line")
    log.when_written(act)
    with trio.fail_after(EVENT_SECONDS):
        await acted.wait()
    assert found[0].endswith("] a line\n")
