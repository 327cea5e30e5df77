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
    script = f'set -eu; umask 022; . "{TREE}"; tree_copy "{sources}" "{package}"'
    subprocess.run(["bash", "-c", script], check=True)
    copied = [package, *package.rglob("*")]
    assert sorted(each.name for each in copied) == ["nvidia-uvm", "package", "uvm.c"]
    for each in copied:
        found = each.lstat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o022) == (os.geteuid(), 0), each
