"""Fixtures for the tests of a member of a service: an mpsd that answers, an arena, a member of its service, and its term."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Service, Term
from mpsd_client import _service as module

from tests.unit.client.fake_mpsd import FIELDS, FakeArena, FakeMpsd, Waiting

LAYOUT = "the hash of a layout"


@pytest.fixture(name="mpsd")
def answering_mpsd(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMpsd]:
    monkeypatch.delenv("MPSD_TEST_ENLISTED", raising=False)
    made = FakeMpsd(short_dir / "mpsd.sock")
    made.tell(layout_hash=LAYOUT, commit=1)
    yield made
    made.close()


@pytest.fixture(name="arena")
def arena_of_all(mpsd: FakeMpsd, monkeypatch: pytest.MonkeyPatch) -> FakeArena:
    made = FakeArena("llm", mpsd.path)
    monkeypatch.setattr(module.Arena, "read", lambda name, path: made)
    return made


@pytest.fixture(name="service")
def open_service(mpsd: FakeMpsd, arena: FakeArena) -> Iterator[Service]:
    with Service("llm", capacity=1 << 21, schema=FIELDS, rank=3, heartbeat=1.5, path=mpsd.path) as made:
        made.open()
        yield made
        arena.trouble = None


def serve(mpsd: FakeMpsd, service: Service, generation: int = 4) -> Term:
    """Return a term, as soon as mpsd knows about it."""
    waiting = Waiting(service.active)
    ready = mpsd.count("service.ready")
    mpsd.wait_for("service.ready", ready or 1)
    mpsd.tell("serve", generation=generation, writer_pid=os.getpid())
    term = waiting.get()
    assert isinstance(term, Term)
    return term


def until(look: Any) -> None:
    """Wait until the condition becomes true."""
    deadline = time.monotonic() + 10
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.001)
