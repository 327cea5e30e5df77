"""An imager ends with the process that it serves, also while the driver keeps it waiting for a place at MPS."""

import socket
import subprocess
import sys

# The module of the driver is one that waits for ever.
WAITS = """
import sys, threading, types
device = sys.modules["mpsd.images.imager.device"] = types.ModuleType("device")
def prepare():
    print("waits", flush=True)
    threading.Event().wait()
device.prepare = prepare
sys.modules["mpsd.images.imager.restoring"] = types.ModuleType("restoring")
from mpsd.images.imager.__main__ import run
run()
"""


def test_an_imager_that_waits_for_the_driver_ends_with_its_process() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        imager = subprocess.Popen([sys.executable, "-c", WAITS], stdin=theirs.fileno(), stdout=subprocess.PIPE)
    with imager, ours:
        try:
            assert imager.stdout is not None
            ours.send(b'{"do": "warm"}')
            assert imager.stdout.readline() == b"waits\n"
            ours.close()
            assert imager.wait(20) == 0
        finally:
            imager.kill()


def test_an_imager_that_fails_says_why() -> None:
    words = [sys.executable, "-m", "mpsd.images.imager"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert b"Error" in done.stderr
