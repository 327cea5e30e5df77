"""Following the logs of a domain: every line once, and a flood of lines stops neither mpsd nor the lines after it."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mpsd.domains.log_follower import follow_logs
from mpsd.host import growing_file
from mpsd.host.growing_file import READ_LINES, GrowingFile
from tests.running import running

FLOOD = 200_000
HEAD = "[2026-11-20 12:29:55.053 Server     7] "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_lines_come_once_in_their_order_and_so_many_at_a_time(path: Path) -> None:
    file = GrowingFile(path, 0)
    assert file.read_lines() == []
    path.write_bytes(b"".join(b"%d\n" % number for number in range(2 * READ_LINES)) + b"half")
    assert file.read_lines() == [str(number) for number in range(READ_LINES)]
    assert file.position == len("".join(f"{number}\n" for number in range(READ_LINES)))
    assert file.read_lines() == [str(number) for number in range(READ_LINES, 2 * READ_LINES)]
    assert file.read_lines() == []
    with path.open("ab") as more:
        more.write(b" and half\n")
    assert file.read_lines() == ["half and half"]
    assert file.position == path.stat().st_size
    path.write_bytes(b"new\n")
    assert file.read_lines() == ["new"], "a shortened file is read from its start"
    file.close()


def test_a_line_without_an_end_is_cut(path: Path) -> None:
    path.write_bytes(b"x" * 200_000 + b"\nnext\n")
    file, found = GrowingFile(path, 0), []
    while lines := file.read_lines():
        found += lines
    assert max(map(len, found)) <= 2 * (64 << 10)
    assert (found[-1], file.position) == ("next", path.stat().st_size)
    file.close()


def test_skipped_lines_are_counted_and_the_unfinished_one_stays(path: Path) -> None:
    path.write_bytes(b"line\n" * 1000 + b"half")
    file = GrowingFile(path, 0)
    read = len(file.read_lines())
    assert read + file.skip_lines() == 1000
    assert file.position == 5000
    with path.open("ab") as more:
        more.write(b" and half\n")
    assert file.read_lines() == ["half and half"]
    assert file.skip_lines() == 0
    file.close()


def test_skipping_goes_so_far_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_file, "_SKIP_BYTES", 100)
    path.write_bytes(b"line\n" * 100)
    file = GrowingFile(path, 0)
    assert (file.skip_lines(), file.position) == (20, 100)
    file.close()


class Followed:
    """A domain with followed logs."""

    def __init__(self, directory: Path) -> None:
        for name in ("control.log", "server.log"):
            (directory / name).touch()
        self.path = directory / "server.log"
        self.published: list[str] = []
        self.stale = 0
        self.position = 0
        self.is_written = True
        self.unwritten: list[Callable[[], None]] = []
        control = SimpleNamespace(log_directory=directory)
        self.domain: Any = SimpleNamespace(
            name="d1", control=control, guard=SimpleNamespace(is_on=True), mark_stale=self._mark_stale
        )

    def _mark_stale(self) -> None:
        self.stale += 1

    def log_position(self, path: str) -> int:
        return 0

    def save_log_position(self, path: str, position: int) -> None:
        self.position = position

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def publish(self, domain: Any, name: str, line: Any) -> None:
        self.published.append(line if isinstance(line, str) else line.text)

    def when_written(self, act: Callable[[], None]) -> None:
        self.unwritten.append(act)
        if self.is_written:
            act()

    async def follow(self) -> None:
        await follow_logs(self.domain, self, self, lambda domain, news: None)


async def until(is_so: Callable[[], bool]) -> None:
    """By the real clock: threads work while the clock of a test jumps."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        await trio.sleep(0.01)


async def test_a_flood_leaves_turns_to_others_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """A flood of 4 s stopped mpsd for 8.4 s."""
    followed, most = Followed(tmp_path), 0

    async def watch() -> None:
        nonlocal most
        while True:
            before = len(followed.published)
            await trio.lowlevel.checkpoint()
            most = max(most, len(followed.published) - before)

    followed.write(b"x\n" * FLOOD)
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(followed.follow)
            await until(lambda: followed.position == 2 * FLOOD)
            nursery.cancel_scope.cancel()
    [flooded] = [line for line in lines if line["event"] == "logs.flooded"]
    assert most <= 2 * READ_LINES
    assert followed.stale > 0
    assert 10_000 < followed.published.count("x") < FLOOD / 2
    assert followed.published.count("x") + flooded["lines"] == FLOOD
    assert f"{flooded['lines']} lines are left out here: they came too fast" in followed.published


async def test_lines_after_a_flood_are_published_and_the_rest_is_counted_in_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Without a watch on the directory, because a test's clock does not wait for real file changes."""
    followed = Followed(tmp_path)

    async def poll() -> None:
        await trio.sleep(0.25)

    with pytest.MonkeyPatch.context() as patch, capture_logs() as lines:
        patch.setattr("mpsd.domains.log_follower._watch", lambda directory, stack: poll)
        async with running(followed.follow):
            for number in (1, 2):
                followed.write(b"x\n" * FLOOD)
                await until(lambda: followed.position == number * 2 * FLOOD)  # noqa: B023
                await trio.sleep(1)
            followed.write(f"{HEAD}the last of them\n".encode())
            await until(lambda: "the last of them" in followed.published)
            await trio.sleep(20)
    told = sum(line["lines"] for line in lines if line["event"] == "logs.flooded")
    assert followed.published.count("x") + told == 2 * FLOOD
    assert followed.position == followed.path.stat().st_size


async def test_logs_that_cannot_be_read_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One moment without a free descriptor ended the news of the domain until its vendor daemon was restarted."""
    followed, read, left = Followed(tmp_path), GrowingFile._read, 5

    def fail(self: GrowingFile, most: int) -> bytes:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(self, most)

    monkeypatch.setattr(GrowingFile, "_read", fail)
    monkeypatch.setattr("mpsd.domains.log_follower._AGAIN_SECONDS", 0.01, raising=False)
    followed.write(b"x\n")
    with capture_logs() as lines:
        async with running(followed.follow):
            await until(lambda: followed.published == ["x"])
    assert [line["event"] for line in lines] == ["logs.unreadable"]


async def test_a_line_counts_as_published_once_it_is_written(tmp_path: Path) -> None:
    """mpsd that was killed before that lost the lines: the next one had its position behind them."""
    followed = Followed(tmp_path)
    followed.is_written = False
    followed.write(b"one\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(followed.follow)
        await until(lambda: followed.published == ["one"])
        await until(lambda: bool(followed.unwritten))
        assert followed.position == 0
        followed.unwritten.pop()()
        assert followed.position == 4
        followed.write(b"two\n")
        await until(lambda: bool(followed.unwritten))
        nursery.cancel_scope.cancel()
    followed.unwritten.pop()()
    assert followed.position == 4, "the domain may be forgotten, and a later one of its name begin a file"
