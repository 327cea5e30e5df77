"""Who owns what kmod/install puts in place: DKMS compiles it as root when the next kernel comes."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2] / "kmod" / "tree.sh"
SOMEBODY = 64321


@pytest.mark.root
def test_the_owner_of_a_drivers_sources_cannot_change_the_package(tmp_path: Path) -> None:
    """tar as root keeps owners and modes: whoever had unpacked the driver could change what root compiles and loads."""
    sources, package = tmp_path / "sources", tmp_path / "package"
    (sources / "nvidia-uvm").mkdir(parents=True)
    (sources / "nvidia-uvm" / "uvm.c").write_text("int uvm;\n")
    (sources / "uvm.o").write_text("compiled\n")
    for each in (sources, *sources.rglob("*")):
        os.chown(each, SOMEBODY, SOMEBODY)
        each.chmod(0o777)
    subprocess.run(["bash", "-c", f'set -eu; umask 002; . "{TREE}"; tree_copy "{sources}" "{package}"'], check=True)
    copied = [package, *package.rglob("*")]
    assert sorted(each.name for each in copied) == ["nvidia-uvm", "package", "uvm.c"]
    for each in copied:
        found = each.lstat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o022) == (os.geteuid(), 0), each


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    """Names a kernel that has headers, as kmod/build finds them."""
    headers = tmp_path / "kernel" / "build"
    headers.mkdir(parents=True)
    (headers / "Makefile").touch()
    return os.path.relpath(tmp_path / "kernel", os.path.realpath("/lib/modules"))


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A driver's sources, of another user.  They do not build."""
    sources = tmp_path / "driver"
    for name in ("nvidia-uvm", "nvidia"):
        (sources / name).mkdir(parents=True)
    (sources / "Kbuild").write_text(r'ccflags += -DNV_VERSION_STRING=\"580.1\"' + "\n")
    for each in (sources, *sources.rglob("*")):
        os.chown(each, SOMEBODY, SOMEBODY)
        each.chmod(0o777)
    return sources


def build(out: Path, driver: Path, kernel: str) -> str:
    """Run kmod/build, which fails.  Return why."""
    done = subprocess.run([TREE.parent / "build", "--out", out, driver, kernel], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.root
@pytest.mark.skipif(not os.path.exists("/lib/modules"), reason="no /lib/modules, below which kernels are named")
def test_the_owner_of_a_drivers_sources_cannot_change_what_is_compiled(tmp_path: Path, driver: Path, kernel: str) -> None:
    out = tmp_path / "out"
    out.mkdir(0o700)
    assert "not the open flavour" in build(out, driver, kernel)
    for each in (out, *out.rglob("*")):
        found = each.lstat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o022) == (os.geteuid(), 0), each


@pytest.mark.root
@pytest.mark.parametrize(("uid", "mode"), [(SOMEBODY, 0o755), (0, 0o777)], ids=["another user's", "writable for all"])
def test_nothing_is_compiled_in_a_folder_that_others_control(tmp_path: Path, driver: Path, uid: int, mode: int) -> None:
    """What an earlier build left is built upon: in /tmp another user could have left it."""
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, uid, uid)
    out.chmod(mode)
    script = f'set -eu; . "{TREE}"; tree_copy "{driver}" "{out}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "another user owns it or may write to it" in done.stderr
    assert (done.returncode, list(out.iterdir())) == (1, [])


FAKES = {  # as of one driver and one kernel; the module in updates/mpsd is preferred
    "modinfo": 'case "$*" in *-n*) echo /lib/modules/updates/mpsd/nvidia-uvm.ko ;; *) echo 580.1 ;; esac',
    "modprobe": "exit 0",
    "depmod": "exit 0",
}


def install(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run kmod/install below a root, with a stock module and one of an earlier install there."""
    programs, built = root / "bin", root / "built/nvidia-uvm.ko"
    programs.mkdir()
    for name, text in FAKES.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for path, text in {
        built: "new", root / "lib/modules/0.0/kernel/nvidia-uvm.ko": "stock",
        root / "lib/modules/0.0/updates/mpsd/nvidia-uvm.ko.xz": "before",
    }.items():  # fmt: skip
        path.parent.mkdir(parents=True)
        path.write_text(text)
    command = [str(TREE.parent / "install"), "--root", str(root), *words, "--built", str(built), "0.0"]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=20)


def test_a_module_that_cannot_be_signed_leaves_the_one_of_before(tmp_path: Path) -> None:
    """modprobe prefers what lies there: one that its kernel does not take leaves the machine without a GPU."""
    done = install(tmp_path, "--sign", "key", "certificate")
    assert (done.returncode, "no sign-file" in done.stderr) == (1, True)
    folder = tmp_path / "lib/modules/0.0/updates/mpsd"
    assert (folder / "nvidia-uvm.ko.xz").read_text() == "before"
    assert list(folder.glob("*.ko")) == []


def test_a_module_takes_the_place_of_the_one_of_before(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "lib/modules/0.0/updates/mpsd"
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("nvidia-uvm.ko", "new")]
