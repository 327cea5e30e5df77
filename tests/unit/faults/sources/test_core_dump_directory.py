"""The directory of core dumps: the files that count as dumps, the files that are kept, and its bounds."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpsd.errors import ProtocolError, UnusablePath
from mpsd.faults.sources import core_dump_directory
from mpsd.faults.sources.core_dump_directory import CoreDirectory
from mpsd.faults.sources.core_dump_file import parse_core
from mpsd.host.inotify import DirectoryWatch
from tests.unit.faults.sources.test_core_dump_file import SAMPLES

IN_OPEN = 0x20
CULPRIT, INNOCENT = SAMPLES["misaligned-culprit"], SAMPLES["misaligned-innocent"]


class Cores:
    """A directory under test, and its clock."""

    def __init__(self, path: Path, kept: int = 2, total_bytes: int = 1 << 24) -> None:
        self.path = path
        self.later = 0.0
        self.directory = CoreDirectory(path, kept, total_bytes, lambda: time.time() + self.later)

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)

    def look(self, *closed: str) -> list:
        return self.directory.look(closed)

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if not path.is_dir())


@pytest.fixture
def cores(tmp_path):
    made = Cores(tmp_path / "cores")
    yield made
    made.directory.close()


def test_everybody_may_write_there_and_nobody_may_look(cores):
    assert cores.path.stat().st_mode & 0o7777 == 0o1733
    assert (cores.path / "kept").stat().st_mode & 0o7777 == 0o711


def test_a_dump_is_read_once_its_writer_has_closed_it(cores):
    cores.write("core.node-1.4711", INNOCENT)
    assert cores.look() == []
    (dump,) = cores.look("core.node-1.4711")
    assert (dump.pid, dump.uid, dump.why, dump.kept_as) == (4711, os.getuid(), "", "")
    assert dump.core.clears
    assert cores.names() == []
    assert cores.look("core.node-1.4711") == []


@pytest.mark.parametrize("name", ["core.4711", "4711", "core.node.example.org.4711"])
def test_a_dump_has_its_pid_at_the_end_of_its_name(cores, name):
    cores.write(name, INNOCENT)
    assert [dump.pid for dump in cores.look(name)] == [4711]


def test_a_dump_that_no_event_told_of_is_found_when_it_is_quiet(cores):
    """As after a restart of mpsd."""
    cores.write("core.4711", INNOCENT)
    cores.later = 6
    assert [dump.pid for dump in cores.look()] == [4711]


def test_a_dump_with_an_exception_is_kept_under_a_name_of_its_own(cores):
    cores.write("core.4711", CULPRIT)
    (dump,) = cores.look("core.4711")
    assert dump.kept_as.startswith("kept/core.4711.")
    assert cores.names() == [dump.kept_as]
    assert (cores.path / dump.kept_as).read_bytes() == CULPRIT


def test_the_newest_are_kept(cores):
    names = ["core.1", "core.2", "core.3"]
    for name in names:
        cores.write(name, CULPRIT)
        cores.look(name)
    assert [name.split(".")[1] for name in cores.names()] == ["2", "3"]


def test_what_is_kept_has_a_bound_in_bytes(tmp_path):
    cores = Cores(tmp_path / "cores", kept=10, total_bytes=len(CULPRIT) * 3 // 2)
    for name in ("core.1", "core.2"):
        cores.write(name, CULPRIT)
        cores.look(name)
    assert [name.split(".")[1] for name in cores.names()] == ["2"]
    cores.directory.close()


def test_a_half_written_file_waits_for_its_rest_and_is_refused_when_none_comes(cores):
    cores.write("core.4711", CULPRIT[:1000])
    assert cores.look("core.4711") == []
    cores.later = 6
    (dump,) = cores.look()
    assert dump.core is None
    assert "do not fit" in dump.why
    assert cores.names() == []


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_read(cores, monkeypatch):
    """As on a failing disk.  It is removed when it has waited too long."""

    def parse(read_at, size):
        if size == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return parse_core(read_at, size)

    monkeypatch.setattr(core_dump_directory, "parse_core", parse)
    cores.write("core.1", b"bad")
    cores.write("core.2", INNOCENT)
    assert [dump.pid for dump in cores.look("core.1", "core.2")] == [2]
    cores.later = 100
    cores.look()
    assert cores.names() == []


@pytest.mark.parametrize("data", [CULPRIT, b"no dump"], ids=["a dump", "not a dump"])
def test_a_file_that_may_not_be_read_is_deleted_unparsed(tmp_path, monkeypatch, data):
    """To parse a file takes the interpreter's lock from the event loop, and only dumps among a user's files were counted."""
    parsed, allowed = [], [False, True]

    def parse(read_at, size):
        parsed.append(size)
        return parse_core(read_at, size)

    monkeypatch.setattr(core_dump_directory, "parse_core", parse)
    monkeypatch.setattr(core_dump_directory, "_QUIET_SECONDS", 0)
    directory = CoreDirectory(tmp_path / "cores", 2, 1 << 24, may_read=lambda uid: uid == os.getuid() and allowed.pop())
    for number in (1, 2):
        (tmp_path / "cores" / f"core.{number}").write_bytes(data)
    assert len(directory.look(["core.1", "core.2"])) == 1
    assert (parsed, allowed) == ([len(data)], [])
    assert not list((tmp_path / "cores").glob("core.*"))
    directory.close()


def test_what_waits_too_long_is_deleted(cores):
    cores.write("notes.txt", b"hello")
    cores.look("notes.txt")
    assert cores.names() == ["notes.txt"]
    cores.later = 61
    cores.look()
    assert cores.names() == []


def test_of_too_much_the_oldest_goes_at_once(tmp_path):
    cores = Cores(tmp_path / "cores", total_bytes=100_000)
    for number in range(4):
        cores.write(f"stray{number}", bytes(40_000))
        os.utime(cores.path / f"stray{number}")
    cores.look()
    assert len(cores.names()) == 2
    cores.directory.close()


def test_a_link_is_no_dump(cores, tmp_path):
    """Neither is what it points to read, nor is it deleted."""
    (tmp_path / "secret").write_bytes(CULPRIT)
    os.symlink(tmp_path / "secret", cores.path / "core.1")
    os.link(tmp_path / "secret", cores.path / "core.2")
    cores.later = 61
    assert cores.look("core.1", "core.2") == []
    assert (tmp_path / "secret").exists()
    assert cores.names() == []


def test_a_fifo_does_not_keep_mpsd_waiting(cores):
    os.mkfifo(cores.path / "core.1")
    assert cores.look("core.1") == []


def test_a_directory_in_it_is_left_alone(cores):
    (cores.path / "core.1").mkdir()
    cores.later = 61
    assert cores.look("core.1") == []
    assert (cores.path / "core.1").is_dir()


def test_a_directory_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "cores")
    with pytest.raises(UnusablePath):
        CoreDirectory(tmp_path / "cores", 1, 1 << 20)


@pytest.mark.parametrize("name", ["os.fchmod", pytest.param("_opens_a_tmpfs", marks=pytest.mark.root)])
def test_a_directory_that_cannot_be_opened_to_users_is_refused(tmp_path, monkeypatch, name):
    """As on a disk that became read-only.  It kept the descriptors, and was logged as a bug."""

    def refuse(*words):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(f"mpsd.faults.sources.core_dump_directory.{name}", refuse)
    with pytest.raises(UnusablePath, match="cores: Read-only file system"):
        CoreDirectory(tmp_path / "cores", 2, 1 << 24)
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def of_another(cores):
    """Write a file that belongs to another user."""

    def write(name: str, data: bytes) -> None:
        cores.write(name, data)
        os.chown(cores.path / name, 12345, 12345)

    return write


@pytest.mark.parametrize("bound", ["_MOST_SEEN", "_MOST_ENTRIES"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_any_number_of_directories_hides_no_dump(cores, monkeypatch, when, bound):
    """They are their makers', so that they stay; mpsd looks at a bounded number of entries."""
    monkeypatch.setattr(core_dump_directory, bound, 8)
    if when == "after":
        cores.write("core.1", CULPRIT)
    for number in range(16):
        (cores.path / f"directory{number}").mkdir()
    if when == "before":
        cores.write("core.1", CULPRIT)
    assert [dump.pid for dump in cores.look("core.1")] == [1]


@pytest.mark.root
def test_a_flood_of_newer_files_pushes_out_no_dump_of_another_user(cores, of_another, monkeypatch):
    monkeypatch.setattr(core_dump_directory, "_MOST_FILES", 8)
    of_another("core.1", CULPRIT)
    for number in range(16):
        cores.write(f"stray{number}", b"")
    assert cores.look() == []
    assert [dump.pid for dump in cores.look("core.1")] == [1]


@pytest.mark.root
def test_files_of_one_user_that_take_long_delay_no_dump_of_another(cores, of_another, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(core_dump_directory, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))

    def parse(read_at, size):
        if size < len(CULPRIT):
            now[0] += 0.6  # of the 1.0 s that a look has
            raise ProtocolError("no dump")
        return parse_core(read_at, size)

    monkeypatch.setattr(core_dump_directory, "parse_core", parse)
    slow = [f"core.{number}" for number in range(10, 20)]
    for name in slow:
        cores.write(name, b"no dump")
    of_another("core.1", CULPRIT)
    assert 1 in [dump.pid for dump in cores.look("core.1", *slow)]


@pytest.mark.root
def test_kept_dumps_of_one_user_push_out_none_of_another(cores, of_another):
    of_another("core.1", CULPRIT)
    cores.look("core.1")
    for name in ("core.2", "core.3", "core.4"):
        cores.write(name, CULPRIT)
        cores.look(name)
    assert [name.split(".")[1] for name in cores.names()] == ["1", "4"]


def test_a_file_that_alone_is_too_large_pushes_out_no_other(tmp_path):
    cores = Cores(tmp_path / "cores", total_bytes=100_000)
    cores.write("stray", bytes(40_000))
    cores.write("large", bytes(140_000))
    cores.look()
    assert cores.names() == ["stray"]
    cores.directory.close()


@pytest.mark.root
def test_a_directory_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "cores").mkdir()
    os.chown(tmp_path / "cores", 12345, 12345)
    with pytest.raises(UnusablePath, match="belongs to user 12345"):
        CoreDirectory(tmp_path / "cores", 1, 1 << 20)


async def test_what_is_no_regular_file_is_never_opened(cores):
    """Opening a FIFO wakes the process at its other end; opening a device can have any effect."""
    os.mkfifo(cores.path / "core.1")
    watch = DirectoryWatch(cores.path, IN_OPEN)
    try:
        assert cores.look("core.1") == []
        cores.write("core.2", INNOCENT)
        assert len(cores.look("core.2")) == 1
        assert await watch.names() - {"kept"} == {"core.2"}
    finally:
        watch.close()


@pytest.mark.parametrize("other", ["a file", "a link", "a directory"])
def test_what_was_read_is_kept_whatever_its_name_means_by_then(cores, tmp_path, monkeypatch, other):
    """Its owner exchanges the file while mpsd reads it."""
    cores.write("core.1", CULPRIT)

    def exchange(read_at, size):
        core = parse_core(read_at, size)
        (cores.path / "core.1").rename(cores.path / "away")
        if other == "a file":
            cores.write("core.1", b"never read")
        elif other == "a link":
            os.symlink(tmp_path / "secret", cores.path / "core.1")
        else:
            (cores.path / "core.1").mkdir()
        return core

    monkeypatch.setattr(core_dump_directory, "parse_core", exchange)
    (dump,) = cores.look("core.1")
    kept = list((cores.path / "kept").iterdir())
    assert [path.name for path in kept] == [dump.kept_as.removeprefix("kept/")]
    assert not kept[0].is_symlink()
    assert kept[0].read_bytes() == CULPRIT


def test_a_dump_that_a_process_can_still_write_to_is_not_read(cores):
    """It closed the file once, but another open file of it remains: it could change the bytes that mpsd reads."""
    cores.write("core.1", CULPRIT)
    with (cores.path / "core.1").open("r+b"):
        assert cores.look("core.1") == []
    (dump,) = cores.look("core.1")
    assert (dump.core.has_exception, dump.may_change) == (True, False)


def test_writers_wait_while_a_dump_is_read(cores, monkeypatch):
    refused = []

    def parse(read, size):
        try:
            os.close(os.open(cores.path / "core.1", os.O_WRONLY | os.O_NONBLOCK))
        except BlockingIOError:
            refused.append("core.1")
        return parse_core(read, size)

    monkeypatch.setattr(core_dump_directory, "parse_core", parse)
    cores.write("core.1", CULPRIT)
    assert cores.look("core.1")
    assert refused == ["core.1"]


# Mounts a FUSE file system that never answers on a user's file, in a mount namespace of its own; then runs mpsd's check.
HANGS = """
import ctypes, os, sys
from pathlib import Path
from mpsd.faults.sources.core_dump_directory import CoreDirectory
libc = ctypes.CDLL(None, use_errno=True)
path = Path(sys.argv[1])
directory = CoreDirectory(path, 2, 1 << 24)
(path / "core.1").write_bytes(b"")
(path / "core.2").write_bytes(Path(sys.argv[2]).read_bytes())
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=100000,user_id=0,group_id=0,allow_other"
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(
    b"fuse", os.fsencode(path / "core.1"), b"fuse", 0, options.encode()
):
    sys.exit(f"skip: {os.strerror(ctypes.get_errno())}")
directory = CoreDirectory(path, 2, 1 << 24)
print("looks", flush=True)
print([dump.name for dump in directory.look(["core.1", "core.2"])], flush=True)
"""


@pytest.mark.root
def test_a_file_system_that_a_user_mounts_on_a_file_is_not_asked(tmp_path):
    (tmp_path / "sample").write_bytes(CULPRIT)
    words = [sys.executable, "-c", HANGS, tmp_path / "cores", tmp_path / "sample"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as look:
        try:
            out, err = look.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            look.kill()  # its descriptor of /dev/fuse was the only one, so that its wait ends
            out, err = look.communicate()
    if err.startswith("skip:"):
        pytest.skip(err)
    assert out == "looks\n['core.2']\n", f"it waits: {out}{err}"
