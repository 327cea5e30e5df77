"""mpsd ends although its directories have become read-only: no process of it or of the vendor's stays."""

import subprocess
from pathlib import Path

import pytest

from tests.hostile.test_full_disk import leave_mount_namespace
from tests.hostile.test_read_only_state import Break, cover, mount
from tests.integration.machine import PROGRAM, UIDS, Machine
from tests.integration.process import wait_for


def harden_pipe(machine: Machine) -> None:
    mount("-o", "remount,ro", machine.pipe)


@pytest.mark.parametrize(("which", "ruin"), [("pipe", harden_pipe), ("state", cover)])
def test_quit_ends_everything(machine: Machine, which: str, ruin: Break) -> None:
    """Beforehand an OSError ended mpsd halfway, and the vendor daemon that refuses clients stayed for ever."""
    leave_mount_namespace()
    directory: Path = getattr(machine, which)
    directory.mkdir(mode=0o755, exist_ok=True)
    mount("-t", "tmpfs", "-o", "size=32m,mode=755", "none", directory)
    try:
        machine.configure('[admission]\ndefault = "refuse"\nrefuse_with = "error"\n')
        machine.start()
        assert machine.counter(uid=UIDS[0]).error() == 805
        ruin(machine)
        machine.quit()
        wait_for("the end of mpsd", lambda: not machine.processes("python"))
        assert machine.processes(PROGRAM) == []
        assert machine.bugs() == []
    finally:
        machine.end_children()
        machine.end_processes()
        while subprocess.run(["mountpoint", "-q", directory], check=False).returncode == 0:
            subprocess.run(["umount", "-l", directory], check=True)
