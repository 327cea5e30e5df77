"""Lines of log survive what disks and readers do, or are counted."""

import errno
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.log import sink
from mpsd.log.sink import LogFile, Rotation, Sink


def note(lines: int) -> bytes:
    return b"lost %d\n" % lines


class Disk:
    """Takes lines while `good`; `held` blocks it as a hung file system would."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.good = True
        self.open = threading.Event()
        self.open.set()

    def write(self, line: bytes) -> None:
        self.open.wait(10)
        if not self.good:
            raise OSError(errno.ENOSPC, "disk full")
        self.lines.append(line)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.open.set()


def test_lines_keep_their_order(disk: Disk) -> None:
    out = Sink(disk.write, note)
    for number in range(100):
        out.put(b"%d\n" % number)
    out.close()
    assert disk.lines == [b"%d\n" % number for number in range(100)]
    assert out.lost == 0


def test_a_full_disk_loses_lines_and_says_how_many(disk: Disk) -> None:
    disk.good = False
    out = Sink(disk.write, note)
    out.put(b"a\n")
    out.put(b"b\n")
    while out.lost < 2:
        pass  # the thread is at it; the test's deadline stands
    disk.good = True
    out.put(b"c\n")
    out.close()
    assert disk.lines == [b"lost 2\nc\n"]
    assert out.lost == 2


def test_a_hung_disk_blocks_nobody(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one who logs, nor the one who ends."""
    monkeypatch.setattr(sink, "CLOSE_SECONDS", 0.01)
    disk.open.clear()
    out = Sink(disk.write, note)
    for _ in range(sink.QUEUED_LINES + 10):
        out.put(b"x\n")
    out.close()
    assert out.lost in (9, 10)  # one line may be in the thread's hand


def test_a_file_is_rotated_and_other_users_may_not_read_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    file = LogFile(str(tmp_path / "mpsd.log"), Rotation(max_bytes=10))
    for line in (b"12345678\n", b"abcdefgh\n", b"ABCDEFGH\n"):
        file.append(line)
    os.umask(before)
    assert (tmp_path / "mpsd.log").read_bytes() == b"ABCDEFGH\n"
    assert (tmp_path / "mpsd.log.1").read_bytes() == b"abcdefgh\n"
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("mpsd.log", "mpsd.log.1")] == [0o640, 0o640]


def test_as_many_files_are_kept_as_asked_for(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "mpsd.log"), Rotation(max_bytes=2, kept=3))
    for number in range(6):
        file.append(b"%d\n" % number)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"mpsd.log": b"5\n", "mpsd.log.1": b"4\n", "mpsd.log.2": b"3\n", "mpsd.log.3": b"2\n"}


def test_a_file_of_an_earlier_period_is_rotated(tmp_path: Path) -> None:
    """By the time of its last line, which survives a restart of mpsd."""
    path = tmp_path / "mpsd.log"
    LogFile(str(path), Rotation(max_days=7)).append(b"old\n")
    os.utime(path, (0, 0))
    LogFile(str(path), Rotation(max_days=7)).append(b"new\n")
    assert (path.read_bytes(), (tmp_path / "mpsd.log.1").read_bytes()) == (b"new\n", b"old\n")


DAY = 86400.0


@pytest.mark.parametrize(
    ("rotation", "size", "written", "now", "is_due"),
    [
        pytest.param(Rotation(), 10**12, 0.0, 1e9, False, id="never"),
        pytest.param(Rotation(max_bytes=100), 90, 0.0, 0.0, False, id="the line fits exactly"),
        pytest.param(Rotation(max_bytes=100), 91, 0.0, 0.0, True, id="one byte too many"),
        pytest.param(Rotation(max_bytes=5), 0, 0.0, 0.0, False, id="an empty file takes any line"),
        pytest.param(Rotation(max_days=2), 1, 2 * DAY, 4 * DAY - 1, False, id="the same period"),
        pytest.param(Rotation(max_days=2), 1, 4 * DAY - 1, 4 * DAY, True, id="the next period"),
        pytest.param(Rotation(max_days=2), 0, 0.0, 1e9, False, id="an empty file is not old"),
    ],
)
def test_when_a_file_is_rotated(rotation: Rotation, size: int, written: float, now: float, is_due: bool) -> None:
    assert rotation.is_due(size, 10, written, now, math.inf) is is_due


@pytest.mark.parametrize(("uptime", "is_due"), [(0.0, False), (DAY - 1, False), (DAY, True)])
def test_a_file_is_rotated_by_its_age_at_most_twice_in_a_period(uptime: float, is_due: bool) -> None:
    assert Rotation(max_days=2).is_due(1, 10, 0.0, 10 * DAY, uptime) is is_due
    assert Rotation(max_bytes=10, max_days=2).is_due(1, 10, 0.0, 0.0, uptime), "by its size at any time"


def test_a_line_longer_than_the_limit_is_still_written(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "mpsd.log"), Rotation(max_bytes=4))
    file.append(b"12345678\n")
    assert (tmp_path / "mpsd.log").read_bytes() == b"12345678\n"


@pytest.mark.parametrize("change", ["rename", "remove", "remove the directory"])
def test_a_file_that_others_move_is_made_anew(change: str, tmp_path: Path) -> None:
    """logrotate renames; the Kubernetes plugin removes the whole directory."""
    path = tmp_path / "log" / "mpsd.log"
    path.parent.mkdir()
    file = LogFile(str(path), Rotation())
    file.append(b"one\n")
    if change == "rename":
        path.rename(tmp_path / "old")
    else:
        path.unlink()
    if change == "remove the directory":
        path.parent.rmdir()
    file.append(b"two\n")
    assert path.read_bytes() == b"two\n"


def test_a_line_after_one_that_was_cut_starts_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LogFile(str(tmp_path / "mpsd.log"), Rotation())
    file.append(b"one\n")
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:2]) if len(line) == 4 else full())
        with pytest.raises(OSError, match="full"):
            file.append(b"two\n")
    file.append(b"three\n")
    assert (tmp_path / "mpsd.log").read_bytes() == b"one\ntw\nthree\n"


def full() -> int:
    raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_only_a_regular_file_is_written(kind: str, tmp_path: Path) -> None:
    """A user who may write in the log directory must not make root write elsewhere, or wait."""
    path = tmp_path / "mpsd.log"
    target = tmp_path / "target"
    target.write_bytes(b"")
    {"fifo": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(target), "directory": path.mkdir}[kind]()
    with pytest.raises(OSError, match=r"mpsd\.log"):
        LogFile(str(path), Rotation()).append(b"x\n")
    assert target.read_bytes() == b""


def test_a_slow_reader_gets_every_byte() -> None:
    """The sink waits for a non-blocking descriptor."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    line = b"x" * 300_000 + b"\n"
    thread = threading.Thread(target=sink.write_all, args=(writer, line))
    thread.start()
    read = b""
    while len(read) < len(line):
        read += os.read(reader, 65536)
    thread.join()
    os.close(reader)
    os.close(writer)
    assert read == line


def test_an_error_of_the_close_loses_no_line_and_closes_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS reports at close what it could not store.  Each later line was lost then, cost a descriptor, and closed the number
    again, which may be a client's connection by then."""
    path = tmp_path / "mpsd.log"
    file = LogFile(str(path), Rotation())
    file.append(b"one\n")
    old, close, closed = file._descriptor, os.close, list[int]()

    def fail(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        if descriptor == old:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(sink.os, "close", fail)
    path.rename(tmp_path / "mpsd.log.1")
    file.append(b"two\n")
    file.append(b"three\n")
    assert path.read_bytes() == b"two\nthree\n"
    assert closed.count(old) == 1
