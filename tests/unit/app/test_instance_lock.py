"""The lock of the state directory."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.app import instance_lock
from mpsd.app.instance_lock import _DAEMON, LOCK, PID_FILE, InstanceLock
from mpsd.config.options import Config
from mpsd.errors import AlreadyRunning
from tests.descriptors import descriptors


def test_a_state_directory_that_another_mpsd_took_costs_no_descriptors(tmp_path: Path) -> None:
    """mpsd tries again every half second, and each attempt left one open."""
    state = tmp_path / "state"
    ours, other = (InstanceLock(tmp_path / "pipe", tmp_path / "log", state) for _ in range(2))
    ours.remake_state()
    (state / LOCK).unlink()
    other.remake_state()
    before = descriptors()
    for _ in range(3):
        with pytest.raises(AlreadyRunning):
            ours.remake_state()
    assert descriptors() == before
    (state / LOCK).unlink()
    ours.remake_state()
    assert descriptors() == before
    with pytest.raises(AlreadyRunning):
        other.remake_state()


@pytest.mark.parametrize(("default", "mode"), [("log", 0o711), ("other", 0o755)])
def test_the_default_log_directory_may_be_listed_by_no_user(
    tmp_path: Path, default: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may be /var/log itself."""
    log = tmp_path / "log"
    log.mkdir()
    log.chmod(0o755)
    monkeypatch.setattr(instance_lock, "Config", lambda: Config(log_directory=str(tmp_path / default)))
    InstanceLock(tmp_path / "pipe", log, tmp_path / "state")._open_log_directory()
    assert log.stat().st_mode & 0o777 == mode


def test_the_pid_file_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    """On ext4 a direct read of it into memory that never answers kept mpsd from replacing it."""
    lock = InstanceLock(tmp_path / "pipe", tmp_path / "log", tmp_path / "state")
    lock.take()
    assert (tmp_path / "pipe" / PID_FILE).stat().st_mode & 0o777 == 0o600


@pytest.fixture
def impostor(short_dir: Path) -> Iterator[int]:
    """Yield the pid of a program that a user gave the name and the variable of a daemon; sockets of the keeper still listen."""
    pipe = short_dir / "pipe"
    pipe.mkdir(mode=0o755)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    process = subprocess.Popen([_DAEMON, "60"], executable="/bin/sleep", env=variables)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(pipe / "control"))
            listener.listen()
            yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("by_mpsd", [True, False], ids=["mpsd's", "the vendor's"])
def test_a_later_process_with_the_pid_of_a_killed_mpsd_is_no_daemon(short_dir: Path, impostor: int, by_mpsd: bool) -> None:
    """mpsd refused to start for as long as a user let `su` wait with that pid."""
    killed, ours = (InstanceLock(short_dir / "pipe", short_dir / "log", short_dir / "state") for _ in range(2))
    killed.pipe.open()
    killed._make_private()
    (short_dir / "state" / LOCK).touch()
    killed.pipe.write(PID_FILE, str(impostor), 0o600)
    killed._note_pid_file()
    if by_mpsd:
        ours.take()
    else:
        killed.pipe.write(PID_FILE, str(impostor), 0o600)
        with pytest.raises(AlreadyRunning, match=f"pid {impostor}"):
            ours.take()
