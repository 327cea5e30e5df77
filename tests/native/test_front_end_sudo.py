"""The front end as root, for a user who called sudo: what the daemon takes from that user's environment."""

import os
from pathlib import Path

import pytest

from tests.native.fake_daemon import Installed

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0"),
    pytest.mark.parametrize("front_end", ["plain", pytest.param("sanitized", marks=pytest.mark.slow)], indirect=True),
]


@pytest.mark.parametrize("start", ["-d", "-f"])
@pytest.mark.parametrize("name", ["MPSD_PYTHON", "MPSD_CONFIG", "MPSD_BACKEND"])
def test_root_takes_no_program_file_or_backend_from_who_called_sudo(installed: Installed, start: str, name: str) -> None:
    """`sudo -E`.  Ignored silently, mpsd would run with another configuration than was asked for."""
    mark = installed.venv / "ran"
    program = installed.venv / "mine"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    result = installed.run(start, env={name: str(program), "SUDO_UID": "1000"})
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (1, "", 1)
    assert f"{name} is set, and root does not take it from uid 1000" in result.stdout
    assert f"env -u SUDO_UID {name}=" in result.stdout
    assert not mark.exists()
    assert not (installed.package / "report.json").exists()


@pytest.mark.parametrize("start", ["-d", "-f"])
def test_what_root_keeps_of_the_environment_of_who_called_sudo(installed: Installed, start: str) -> None:
    kept = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/a", "CUDA_VISIBLE_DEVICES": "0", "SUDO_UID": "1000", "SUDO_USER": "someone"}
    dropped = {"LD_LIBRARY_PATH": "/tmp", "CUDA_INJECTION64_PATH": "/tmp/mine.so", "PYTHONPATH": "/tmp", "PATH": "/tmp/mine"}
    assert installed.run(start, env=kept | dropped).returncode == 0
    found = dict(each.partition("=")[::2] for each in installed.report()["environ"].split("\0") if each)
    assert found == {**kept, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.mark.parametrize("uid", ["", "0"])
def test_root_itself_names_what_it_wants(installed: Installed, front_end: Path, uid: str) -> None:
    named = str(installed.venv / "bin" / "python3")
    assert installed.run("-d", program=front_end, env={"MPSD_PYTHON": named, "SUDO_UID": uid, "HOME": "/root"}).returncode == 0
    assert "HOME=/root" in installed.report()["environ"]
