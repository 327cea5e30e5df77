"""An imager ends with the process that it serves, also while the driver keeps it waiting for a place at MPS."""

import math
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from mpsd.images.imager import serving
from mpsd.images.imager.requests import Request
from mpsd.images.rules.refusals import NoSuchImage

# The module of the driver is one that waits for ever; the imager waits for it a moment.
WAITS = """
import sys, threading, types
device = sys.modules["mpsd.images.imager.device"] = types.ModuleType("device")
def prepare():
    print("waits", flush=True)
    threading.Event().wait()
device.prepare = prepare
sys.modules["mpsd.images.imager.restoring"] = types.ModuleType("restoring")
from mpsd.images.imager import warming
warming.END_SECONDS = 0.1
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


def test_an_imager_waits_for_its_context_also_where_a_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an end in the middle of a context the vendor's daemon may hang (docs/decisions/027).  A request that fails is no
    end: its answer came five seconds late."""
    said: list[str] = []

    class Channel:
        requests = iter(("restore", "renew"))

        def receive(self) -> Request:
            if (do := next(self.requests, None)) is None:
                raise ValueError("not a request")
            return Request({"do": do}, [])

        def answer(self, kind: str, **facts: object) -> None:
            said.append(kind)

    class Work:
        def __init__(self, *_: object) -> None: ...

        def renew(self, request: Request) -> None:
            raise NoSuchImage("no image")

        def give_up(self, why: str = "") -> None:
            said.append(f"gives up: {why}")

    monkeypatch.setattr(serving, "_begin", Work)
    with pytest.raises(ValueError, match="not a request"):
        serving._serve(Channel(), SimpleNamespace(begin=lambda asked: None))  # type: ignore[arg-type]
    assert said == ["gives up: no image", "failed", "gives up: "]


@pytest.mark.parametrize("answer", [False, OSError("no room")])
def test_an_imager_begins_no_context_before_it_has_answered(answer: bool | OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that failed, no work was there that could wait for the context at the end."""
    restoring = pytest.importorskip("mpsd.images.imager.restoring")
    facts = SimpleNamespace(
        name="a", gpu="g", content_bytes=0, layout=b"", state=b"", window_bytes=0, capacity_bytes=0, allocations=()
    )
    manifest = SimpleNamespace(members=(), arenas=[SimpleNamespace(facts=facts)], name="one", instant=0.0)
    image = SimpleNamespace(manifest=manifest, arena=lambda name: 0)
    images = SimpleNamespace(reader=lambda name: image, directory=SimpleNamespace(hash_of=None))
    begun: list[str] = []
    monkeypatch.setattr(restoring, "Images", SimpleNamespace(open_existing=lambda path: images))
    monkeypatch.setattr(restoring, "Start", lambda gpu, hash_of: begun.append(gpu))
    monkeypatch.setattr(restoring, "Progress", lambda request: SimpleNamespace(expect=lambda size: None))

    def respond(*_: object, **facts: object) -> bool:
        if isinstance(answer, OSError):
            raise answer
        return answer

    asked = Request({"directory": "/nowhere", "image": "one", "arena": "a", "gpu": ""}, [])
    with suppress(OSError):
        restoring.Restorer(SimpleNamespace(answer=respond), asked)
    assert not begun


def test_a_failed_request_waits_for_no_context() -> None:
    restoring = pytest.importorskip("mpsd.images.imager.restoring")
    waits: list[str] = []
    made = object.__new__(restoring.Restorer)
    made._start, made._filling = SimpleNamespace(wait=lambda: waits.append("waits")), None
    made.give_up("no image")
    assert not waits
    made.give_up()
    assert waits == ["waits"]


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
