"""The end of a child: its status is its own, also when its pid is another child's by then."""

import os
import signal
import subprocess

import pytest

from mpsd.host.child import Child
from mpsd.host.processes import collect


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", -signal.SIGKILL)])
def test_its_status(script: str, status: int) -> None:
    process = subprocess.Popen(["sh", "-c", script])
    assert Child(process.pid, os.pidfd_open(process.pid)).reap() == status
    process.returncode = status  # it is reaped


def test_a_later_child_with_its_pid_is_not_waited_for() -> None:
    """mpsd's reaper had taken the first one: the event loop then waited for the end of the other."""
    first = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(first.pid)
    while not collect(first.pid):
        pass
    first.returncode = 0
    with subprocess.Popen(["sh", "-c", "sleep 5; exit 7"], start_new_session=True) as later:
        assert Child(later.pid, pidfd).reap() == 0
        os.killpg(later.pid, signal.SIGKILL)
        assert later.wait() == -signal.SIGKILL
