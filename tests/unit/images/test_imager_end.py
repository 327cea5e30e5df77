"""An imager ends with the process that it serves, also while the driver keeps it waiting for a place at MPS."""

import math
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_no_image_is_of_a_client_that_went_on_before_the_barrier_ended() -> None:
    """A stopped client goes on at a fixed time.  A block that it writes after its hash was compared is in no second hash, so
    the image would have the bytes of two moments."""
    process = pytest.importorskip("mpsd.images.imager.process")
    said: list[str] = []
    rates: list[float] = []
    done: list[str] = []
    arena = SimpleNamespace(stage=lambda: (0, 0), finish=rates.append, give_up=lambda: done.append("freed"))
    finished = SimpleNamespace(name="one", content_bytes=0)
    made: Any = object.__new__(process.Imager)
    vars(made).update(
        _arenas={"llm": arena}, _parity=None, _images=SimpleNamespace(tidy=lambda: done.append("tidied")),
        _channel=SimpleNamespace(answer=lambda kind, **_: said.append(kind) or True),
        _writer=SimpleNamespace(finish=lambda *_, **__: done.append("published") or finished, new_bytes=0),
    )  # fmt: skip
    writer, now = made._writer, time.monotonic()
    with pytest.raises(process.ClientWroteError, match="stood still"):
        made.stage(SimpleNamespace(asked={"do": "stage", "until": now}))
    assert said == []
    for asked in ({"do": "stage", "until": now + 60.0}, {"do": "stage"}, {"do": "stage", "is_waited_for": True}):
        made._writer = writer
        made.stage(SimpleNamespace(asked=asked))
    assert said == ["staged", "complete"] * 3
    assert rates[0] == rates[1] < math.inf == rates[2], "a client that does nothing meanwhile is not spared"
    assert done == [*2 * ("published", "freed", "tidied"), "published", "freed"], "a replica does not wait for the lock then"
