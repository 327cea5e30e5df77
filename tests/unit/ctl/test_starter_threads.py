"""A starter on a machine, or in a cgroup, that has no thread left for it: it goes on, and tries again."""

import os
import subprocess
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from mpsctl import waiting
from mpsctl.starter.child_group import ChildGroup
from mpsctl.starter.children import Child, Place
from mpsctl.starter.ending import Manner
from mpsctl.starter.plan import Make
from mpsctl.starter.runner import Starter
from mpsd_client import values

from tests.unit.ctl.console import Terminal

WAITS_SECONDS = 20.0


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")  # as CPython says it


class Reports:
    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def report(self, event: str, text: str, **facts: object) -> None:
        self.made.append((event, text))


@pytest.mark.parametrize("last", [0, 1], ids=["none", "one"])
def test_a_child_that_cannot_be_waited_for_is_not_left_running(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    before, threads = subprocess.Popen, [threading.Thread.start] * last

    def popen(*words: Any, **how: Any) -> subprocess.Popen[bytes]:
        begun.append(before(*words, **how))
        return begun[-1]

    def start(thread: threading.Thread) -> None:
        (threads.pop() if threads else no_thread)(thread)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(threading.Thread, "start", start)
    place = Place("llm", ["sleep", "1000"], os.environ, None, 1)
    with pytest.raises(OSError, match="can't start new thread"):  # which a starter takes for a member that did not start
        place.begin(1, Make(), None, lambda child, status: pytest.fail("it is no child"), lambda child, why: None)
    writer, child = begun
    assert child.returncode == -9
    assert writer.wait(WAITS_SECONDS) == 0


def test_the_end_of_a_child_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reports, told = Reports(), SimpleQueue[object]()
    place = Place("llm", ["sleep", "1000"], os.environ, None, 1)
    connection: Any = SimpleNamespace(connect=lambda: (_ for _ in ()).throw(OSError("no mpsd")))
    group = ChildGroup(connection, place, Manner(grace_seconds=0.2), reports, told.put)  # type: ignore[arg-type]
    ended = SimpleQueue[Child]()
    child = group.children[1] = place.begin(1, Make(), None, lambda child, status: ended.put(child), lambda child, why: None)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_thread)
        group.stop(1, "the service ends")
    assert not child.is_stopping
    assert [event for event, _ in reports.made] == ["trouble"]
    group.stop(1, "the service ends")
    assert ended.get(timeout=WAITS_SECONDS) is child
    assert child.is_stopping


@pytest.mark.parametrize("why", ["", "pid 586 continues"], ids=["it yields", "it does not yield in time"])
def test_an_active_that_makes_way_yields_before_it_is_ended(why: str) -> None:
    """A standby need not: it writes nothing."""
    told, asked = SimpleQueue[Any](), list[tuple[object, ...]]()

    def hand_over(service: str, *, from_pid: int) -> str:
        asked.append((service, from_pid, child.has_ended.is_set()))
        return why

    place = Place("llm", ["sleep", "1000"], os.environ, None, 1)
    connection: Any = SimpleNamespace(connect=lambda: (_ for _ in ()).throw(OSError("no mpsd")), hand_over=hand_over)
    group = ChildGroup(connection, place, Manner(0.1, 0.1), Reports(), told.put)  # type: ignore[arg-type]
    for is_writer in (False, True):
        ended = SimpleQueue[Child]()
        child = group.children[1] = place.begin(1, Make(), None, lambda child, _, to=ended: to.put(child), lambda *_: None)  # type: ignore[misc]
        child.member = values.Member(586, 5, "d1", 0, "ready", is_writer, True, 1.0)
        group.stop(1, "its successor has no room", yields=True)
        assert ended.get(timeout=WAITS_SECONDS) is child
        trouble = told.get(timeout=WAITS_SECONDS).trouble
        assert asked == [("llm", 586, False)] * is_writer
        assert (f"may lose a step: {why}" in trouble) == bool(is_writer and why)


def test_a_handover_that_cannot_be_asked_for_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Starter.__new__(Starter)
    made._news, made._reporter = SimpleQueue(), Reports()
    made._children = SimpleNamespace(children={2: SimpleNamespace(member=SimpleNamespace(pid=7))})
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    made._hand_over(2)
    assert made._news.get_nowait().why == "can't start new thread"


def test_a_wait_that_cannot_be_shown_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    stderr = Terminal()
    with waiting.shown_wait("status", stderr):
        pass
    assert stderr.getvalue() == ""
