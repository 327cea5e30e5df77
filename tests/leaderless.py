"""A process whose first thread has ended, as any program's may, while another one goes on until its input ends."""

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.hostile.attacker import PYTHON

_EXIT = {"x86_64": 60, "aarch64": 93}  # SYS_exit, which ends one thread
_PROGRAM = f"""
import ctypes, os, sys, threading
def go_on():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall(ctypes.c_long({_EXIT.get(platform.machine(), 60)}), ctypes.c_long(0))
"""


@contextmanager
def leaderless(**options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """options: of Popen, as `user`."""
    with subprocess.Popen([PYTHON, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, **options) as made:
        try:
            while b"(zombie)" not in _status(made.pid):
                time.sleep(0.01)
            yield made
        finally:
            made.kill()


def _status(pid: int) -> bytes:
    descriptor = os.open(f"/proc/{pid}/status", os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
