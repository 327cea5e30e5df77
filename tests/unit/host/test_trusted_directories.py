"""Directories are followed name by name, and a file in one is opened only when it is ours."""

import os
import stat
import struct
from pathlib import Path

import pytest

from mpsd.errors import UnusablePath
from mpsd.host.trusted_directories import NotTrusted, leads_to, look, open_directory, open_file

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0, to make directories of other users")
APPEND = os.O_WRONLY | os.O_APPEND


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_level_is_made(tmp_path: Path) -> None:
    before = os.umask(0o022)
    opened = open_directory(tmp_path / "a", make_mode=0o755)
    os.umask(before)
    assert (mode_of(tmp_path / "a"), opened.was_mode) == (0o755, None)
    assert leads_to(tmp_path / "a", opened.descriptor)
    os.close(opened.descriptor)
    with pytest.raises(UnusablePath, match="No such file or directory"):
        open_directory(tmp_path / "b" / "c", make_mode=0o755)


def test_what_everybody_may_write_to_is_tightened(tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)
    assert look(tmp_path).tightens
    opened = open_directory(tmp_path)
    assert (opened.was_mode, mode_of(tmp_path)) == (0o2777, 0o2755)
    os.close(opened.descriptor)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(0o755, 0o711, id="as mkdir makes it"),
        pytest.param(0o777, 0o711, id="as scripts make it"),
        pytest.param(0o750, 0o750, id="for a group of the operator's"),
    ],
)
def test_no_user_may_list_what_is_mpsds_alone(tmp_path: Path, before: int, after: int) -> None:
    """The kernel locked the directory while a user's list waited for the user's own file system; mpsd's start then hung."""
    tmp_path.chmod(before)
    opened = open_directory(tmp_path, is_ours_alone=True)
    assert (opened.was_mode, mode_of(tmp_path)) == (None if before == after else before, after)
    os.close(opened.descriptor)


def test_links_of_ours_are_followed_and_do_not_go_round(tmp_path: Path) -> None:
    (tmp_path / "run" / "mps").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "run")
    (tmp_path / "relative").symlink_to("absolute/../run/./mps")
    opened = open_directory(tmp_path / "relative")
    assert leads_to(tmp_path / "run" / "mps", opened.descriptor)
    os.close(opened.descriptor)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnusablePath, match="Too many levels"):
        open_directory(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to("none")
    with pytest.raises(UnusablePath, match="No such file"):
        open_directory(tmp_path / "nowhere")


def test_another_directory_in_its_place_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    descriptor = open_directory(tmp_path / "a").descriptor
    (tmp_path / "a").rename(tmp_path / "b")
    assert not leads_to(tmp_path / "a", descriptor)
    (tmp_path / "a").mkdir()
    assert not leads_to(tmp_path / "a", descriptor)
    assert leads_to(tmp_path / "b", descriptor)
    os.close(descriptor)


@AS_ROOT
@pytest.mark.parametrize("where", ["itself", "above", "a link"])
def test_what_another_user_controls_is_refused(where: str, tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    wanted.mkdir(parents=True)
    os.chown({"itself": wanted, "above": wanted.parent, "a link": tmp_path}[where], 65534 if where != "a link" else 0, 0)
    if where == "a link":
        wanted.rmdir()
        (tmp_path / "real").mkdir()
        wanted.symlink_to(tmp_path / "real")
        os.chown(wanted, 65534, 65534, follow_symlinks=False)
    with pytest.raises(NotTrusted, match=r"\(uid 65534, mode 0\d+\) belongs to another user"):
        open_directory(wanted)
    assert look(wanted).refusal


@AS_ROOT
def test_an_access_control_list_is_nobodys_private_group(tmp_path: Path) -> None:
    """stat shows the list's mask as the rights of group 0."""
    (tmp_path / "a").mkdir()
    tmp_path.chmod(0o775)
    assert not look(tmp_path / "a").refusal
    # Tag, rights and id of the owner, of user 65534, of the group, of the mask and of others: linux/posix_acl_xattr.h.
    entries = [(0x01, 7, -1), (0x02, 7, 65534), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_access", acl)
    except OSError as exc:
        pytest.skip(f"no access control lists here: {exc}")
    with pytest.raises(NotTrusted, match="its group may rename"):
        open_directory(tmp_path / "a")


@AS_ROOT
@pytest.mark.parametrize("kind", ["another's file", "a second name", "another's link", "another's FIFO"])
def test_a_file_of_somebody_elses_is_replaced(kind: str, tmp_path: Path) -> None:
    """It was made while the directory had mode 0777: its owner could read what is logged, or what it leads to is damaged."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    path = tmp_path / "dir" / "control.log"
    path.parent.mkdir()
    if kind == "a second name":
        path.hardlink_to(precious)
    elif kind == "another's file":
        path.write_text("mine")
    elif kind == "another's link":
        path.symlink_to(precious)
    else:
        os.mkfifo(path)
    if kind != "a second name":
        os.chown(path, 65534, 65534, follow_symlinks=False)
    directory = os.open(path.parent, os.O_RDONLY)
    file = open_file(directory, path.name, APPEND, 0o640)
    os.write(file, b"line\n")
    os.close(file)
    os.close(directory)
    assert (path.read_bytes(), path.stat().st_uid, mode_of(path)) == (b"line\n", 0, 0o640)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "FIFO", "directory"])
def test_something_else_of_ours_is_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "control.log"
    {"link": lambda: path.symlink_to("/dev/null"), "FIFO": lambda: os.mkfifo(path), "directory": path.mkdir}[kind]()
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError):  # noqa: PT011
        open_file(directory, path.name, APPEND, 0o644)
    os.close(directory)
    assert os.path.lexists(path)
