"""The lock of the state directory."""

from pathlib import Path

import pytest

from mpsd.app import instance_lock
from mpsd.app.instance_lock import LOCK, PID_FILE, InstanceLock
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
