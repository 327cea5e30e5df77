"""mpsctl image: the progress that it prints, and the processes that it stops."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mpsctl.commands import images
from mpsctl.output import Output
from mpsctl.standstill import CannotStop, Standstill
from mpsctl.surroundings import Surroundings
from mpsd_client import Event, Lost

from mpsd.host import processes
from tests.unit.ctl.console import Terminal


def said(stderr: StringIO, *, is_json: bool) -> str:
    progress = images.Progress(Output(Surroundings(StringIO(), stderr, {}, lambda: 0.0, str), is_json=is_json))
    progress(1 << 30, 4 << 30)
    progress.end()
    return stderr.getvalue()


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "EACH_SECONDS", 0.0)
    assert said(Terminal(), is_json=False) == "\r1G of 4G \n"
    assert said(StringIO(), is_json=False) == "", "no terminal"
    assert json.loads(said(StringIO(), is_json=True)) == {"done_bytes": 1 << 30, "total_bytes": 4 << 30}


def test_short_work_says_nothing() -> None:
    assert said(Terminal(), is_json=False) == said(StringIO(), is_json=True) == ""


def test_pids_of_another_namespace_name_nothing_here() -> None:
    """In a container mpsctl stopped the process with the writer's number, while the writer went on and the image was torn."""
    session: Any = SimpleNamespace(mpsd=SimpleNamespace(hello=SimpleNamespace(pid=os.getpid() + 1)), all=lambda call: [])
    with pytest.raises(images.ImageError, match="another pid namespace"):
        images._writers(session, [])
    session.mpsd.hello.pid = os.getpid()
    assert images._writers(session, []) == []


def of(domain: str | None) -> Event:
    return Event("fault.xid", 0.0, {"domain": domain})


@pytest.mark.parametrize(
    ("event", "domains", "may_go_on"),
    [
        (of("theirs"), {"mine"}, True),
        (of("mine"), {"mine"}, False),
        (of(None), {"mine"}, False),
        (of(""), {"mine"}, False),
        (of("theirs"), {"mine", None}, False),
        (Lost(1), {"mine"}, False),
    ],
)
def test_a_fault_in_another_domain_ends_no_image(event: Event | Lost, domains: set[str | None], may_go_on: bool) -> None:
    """Any user's fault ended the images of all: only their own server has to wait for the stopped writers."""
    watch: Any = SimpleNamespace(events=lambda seconds: iter([event]))
    if may_go_on:
        images._see_no_fault(watch, domains, 1.0)
    else:
        with pytest.raises(images.ImageError, match="they go on"):
            images._see_no_fault(watch, domains, 1.0)


def test_many_faults_elsewhere_prolong_no_standstill() -> None:
    def events(seconds: float) -> Iterator[Event]:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            yield of("theirs")
        raise AssertionError("it looks for ever")

    watch: Any = SimpleNamespace(events=events)
    images._see_no_fault(watch, {"mine"}, 0.01)


def test_the_domains_of_writers_are_known_or_any_may_be() -> None:
    known = [SimpleNamespace(pid=7, start_time=70, domain="a"), SimpleNamespace(pid=8, start_time=80, domain=None)]
    session: Any = SimpleNamespace(all=lambda call: known)
    assert images._domains(session, [(7, 70)]) == {"a"}
    for unknown in ((7, 71), (8, 80), (9, 90)):
        assert images._domains(session, [(7, 70), unknown]) == {"a", None}


def test_a_process_that_got_the_writers_pid_is_not_stopped() -> None:
    """mpsd lists a writer for a while after its end; the process that had its pid by then stood still for the image."""
    with subprocess.Popen(["sleep", "60"]) as later:
        try:
            start_time = processes.process_id(later.pid).start_time
            with pytest.raises(CannotStop, match="another one has its pid"):
                Standstill(later.pid, start_time - 1, 60.0)
            with Standstill(later.pid, start_time, 60.0) as standing:
                standing.stop()
                assert Path(f"/proc/{later.pid}/stat").read_text().split()[2] == "T"
        finally:
            later.kill()
    with pytest.raises(CannotStop, match="has ended"):
        Standstill(later.pid, start_time, 60.0)


def test_a_process_whose_name_is_no_text_stands_still_too() -> None:
    """mpsctl ended with a traceback."""
    rename = "open('/proc/self/comm', 'wb').write(bytes([255])); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        named.stdout.readline()
        found = processes.process_id(named.pid)
        assert found is not None
        with Standstill(named.pid, found.start_time, 60.0) as standing:
            standing.stop()
            assert processes.state(named.pid) == "T"
        named.communicate(b"\n")
