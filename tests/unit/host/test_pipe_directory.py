"""New files in the pipe directory replace existing ones, and follow no links."""

import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from mpsd.errors import UnusablePath
from mpsd.host import listeners
from mpsd.host.pipe_directory import PipeDirectory

OLD = 40 * 86400


@pytest.fixture
def place(short_dir: Path) -> Path:
    (short_dir / "precious").write_text("precious")
    (short_dir / "precious").chmod(0o600)
    return short_dir


@pytest.fixture
def pipe(place: Path) -> PipeDirectory:
    made = PipeDirectory(place / "pipe")
    made.open()
    return made


def leave_links(pipe: PipeDirectory, target: Path, *names: str) -> None:
    for name in names:
        (pipe.path / name).symlink_to(target)


def check_untouched(place: Path) -> None:
    file = place / "precious"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("precious", 0o600)


def test_a_file_is_written_in_the_place_of_links(place: Path, pipe: PipeDirectory) -> None:
    leave_links(pipe, place / "precious", "pid", ".pid.new")
    pipe.write("pid", "4711", 0o644)
    assert (pipe.path / "pid").lstat().st_mode == stat.S_IFREG | 0o644
    assert (pipe.read("pid"), sorted(os.listdir(pipe.path))) == ("4711", ["pid"])
    check_untouched(place)


def test_a_link_is_led_elsewhere_in_the_place_of_links(place: Path, pipe: PipeDirectory) -> None:
    leave_links(pipe, place / "precious", "control", ".control.new")
    pipe.link("control", "/somewhere/control")
    assert (pipe.link_target("control"), sorted(os.listdir(pipe.path))) == ("/somewhere/control", ["control"])
    check_untouched(place)


def test_a_socket_takes_the_place_of_a_link(place: Path, pipe: PipeDirectory) -> None:
    leave_links(pipe, place / "precious", "control")
    before = os.umask(0)
    with pipe.listen("control", 0o640) as listener:
        os.umask(before)
        assert (pipe.path / "control").lstat().st_mode == stat.S_IFSOCK | 0o640
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(pipe.path / "control"))
            listener.accept()[0].close()
    check_untouched(place)


def test_nobody_reaches_a_socket_before_it_has_its_mode(pipe: PipeDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with umask 0."""
    seen = []
    monkeypatch.setattr(listeners, "_set_mode", lambda *_: seen.append((pipe.path / "control").lstat().st_mode & 0o777))
    before = os.umask(0)
    pipe.listen("control", 0o666).close()
    os.umask(before)
    assert seen == [0o600]


def test_a_link_in_the_place_of_a_new_socket_is_not_given_its_mode(
    place: Path, pipe: PipeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who can remove the socket could do that: the race of bind and chmod."""
    set_mode = listeners._set_mode

    def too_late(directory: int, name: str, mode: int) -> None:
        (pipe.path / name).unlink()
        leave_links(pipe, place / "precious", name)
        set_mode(directory, name, mode)

    monkeypatch.setattr(listeners, "_set_mode", too_late)
    with pytest.raises(UnusablePath, match="cannot listen at"):
        pipe.listen("control", 0o666)
    check_untouched(place)


def test_it_works_in_the_directory_that_was_opened(place: Path, pipe: PipeDirectory) -> None:
    pipe.path.rename(place / "before")
    pipe.path.mkdir()
    pipe.write("pid", "4711", 0o644)
    assert not pipe.is_current()
    assert (os.listdir(place / "before"), os.listdir(pipe.path)) == (["pid"], [])


@pytest.mark.parametrize("kind", ["directory", "FIFO", "link"])
def test_what_is_no_file_reads_as_empty(kind: str, place: Path, pipe: PipeDirectory) -> None:
    path = pipe.path / "pid"
    {"directory": path.mkdir, "FIFO": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(place / "precious")}[kind]()
    assert pipe.read("pid") == ""


@pytest.mark.parametrize("is_open", [True, False])
def test_systemd_tidies_an_open_one_not(is_open: bool, place: Path) -> None:
    """tmpfiles.d(5): a locked directory is left alone. It does not recognise the sockets there by their names."""
    if not shutil.which("systemd-tmpfiles"):
        pytest.skip("no systemd-tmpfiles here; apt-get install systemd")
    path = place / "tmp" / "pipe"
    path.parent.mkdir()
    path.mkdir()
    file = path / "pid"
    file.touch()
    os.utime(file, (file.stat().st_mtime - OLD,) * 2)
    (place / "conf").write_text("q /tmp 1777 - - m:10d\n")
    pipe = PipeDirectory(path)
    if is_open:
        pipe.open()
    subprocess.run(["systemd-tmpfiles", "--clean", f"--root={place}", str(place / "conf")], check=True, capture_output=True)
    assert file.exists() is is_open
