"""clients/debian/in-use, by which `make uninstall` and the Debian package see who uses the installation."""

import mmap
import subprocess
import sys
from pathlib import Path

IN_USE = Path(__file__).resolve().parents[2] / "clients/debian/in-use"
USER = """\
import ctypes, mmap, sys
ctypes.CDLL(None).prctl(15, b"\\33]0;it\\\\033[2J", 0, 0, 0)  # PR_SET_NAME
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_the_name_of_a_process_does_not_control_roots_terminal(tmp_path: Path) -> None:
    """Any user can map a file of the installation, and choose the name."""
    file = tmp_path / "file"
    file.write_bytes(bytes(mmap.PAGESIZE))
    words = [sys.executable, "-c", USER, str(file)]
    (tmp_path / "bin").mkdir()
    no_pause = tmp_path / "bin/sleep"  # between its ten looks
    no_pause.write_text("#!/bin/sh\n")
    no_pause.chmod(0o755)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == "mapped\n"
        environ = {"PATH": f"{no_pause.parent}:/usr/bin:/bin"}
        found = subprocess.run([IN_USE, tmp_path], env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == f"pid {user.pid} (?]0;it\\033[2J) uses {tmp_path}\n"
