"""Runs in the guest: the kernel's FUSE, for every user.  tests/kmod/guest/guest_run.py has the rest."""

import os
import subprocess
from pathlib import Path

DEVICE = Path("/dev/fuse")


def pytest_configure() -> None:
    if not DEVICE.exists():
        subprocess.run(["modprobe", "-d", os.environ["MPSD_GUEST_KERNEL"], "fuse"], check=True)
    DEVICE.chmod(0o666)  # as udev's rules do
