"""A process whose first thread has ended, as any program's may, while another one goes on until its input ends.

At a line of input that thread executes another program, and so is the first one from then on.
"""

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
    if sys.stdin.readline():
        os.execv("/bin/sleep", ["sleep", "600"])
    os._exit(0)
threading.Thread(target=go_on).start()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).syscall(ctypes.c_long({_EXIT.get(platform.machine(), 60)}), ctypes.c_long(0))
"""
# Its tracer, which this program is, does not take the status of the threads that have ended: they stay.
_CROWDED = f"""
import ctypes, os, signal, sys, threading
libc = ctypes.CDLL(None)
def end():
    libc.syscall(ctypes.c_long({_EXIT.get(platform.machine(), 60)}), ctypes.c_long(0))
def end_traced():
    libc.ptrace(0, 0, 0, 0)
    end()
made = os.fork()
if made:
    print(made, flush=True)
    signal.pause()
libc.prctl(1, signal.SIGKILL, 0, 0, 0)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=end_traced).start()
threading.Thread(target=signal.pause).start()
end()
"""


@contextmanager
def leaderless(others: int = 0, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """others: threads that sleep in it.  options: of Popen, as `user`."""
    with subprocess.Popen([PYTHON, "-I", "-S", "-c", _PROGRAM, str(others)], stdin=subprocess.PIPE, **options) as made:
        try:
            while b"(zombie)" not in _status(made.pid):
                time.sleep(0.01)
            yield made
        finally:
            made.kill()


def execute(made: "subprocess.Popen[bytes]") -> None:
    """Let the thread that goes on execute a program, and wait until it is the first one: 30 s at most."""
    assert made.stdin is not None
    made.stdin.write(b"\n")
    made.stdin.flush()
    deadline = time.monotonic() + 30
    while b"(zombie)" in _status(made.pid) and time.monotonic() < deadline:
        time.sleep(0.01)


@contextmanager
def crowded(count: int) -> Iterator[int]:
    """Yield the pid of such a process, in which so many threads have ended before the one that goes on began."""
    with subprocess.Popen([PYTHON, "-I", "-S", "-c", _CROWDED, str(count)], stdout=subprocess.PIPE) as tracer:
        try:
            assert tracer.stdout is not None
            pid = int(tracer.stdout.readline())
            while len(os.listdir(f"/proc/{pid}/task")) < count + 2 or b"(zombie)" not in _status(pid):
                time.sleep(0.01)
            yield pid
        finally:
            tracer.kill()


def _status(pid: int) -> bytes:
    descriptor = os.open(f"/proc/{pid}/status", os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
