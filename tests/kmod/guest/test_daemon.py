"""The real daemon in the guest, with the simulated MPS and the real module: a contained fault from end to end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon import open_machine, start
from device import Device, Kind
from guest_run import SLOWDOWN
from mpsd_client import Client as Mpsd
from mpsd_client import Event, calls
from telling import tell
from uvm_client import ADDRESS

from tests.integration.machine import Machine

CLIENT = Path(__file__).with_name("uvm_client.py")
EVENT_SECONDS = 45.0 * SLOWDOWN
# Who reads zeros is ended all the same.
FORGIVING = '[faults]\nquarantine = "off"\ncrash_pause_max = 0.0\nculprit = "leave"\n'


@pytest.fixture
def machine() -> Iterator[Machine]:
    with open_machine() as made:
        yield made


class Client:
    """A uvm_client.py."""

    def __init__(self, machine: Machine) -> None:
        self.process = subprocess.Popen(
            [sys.executable, CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | machine.variables,
        )
        self.pid = self.process.pid

    def heard(self, event: str) -> dict[str, Any]:
        assert self.process.stdout
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert said["event"] == event
        return said

    def fault(self) -> None:
        """The client is frozen before it can report the result."""
        assert self.process.stdin
        self.process.stdin.write("now\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


@contextmanager
def client_of(machine: Machine) -> Iterator[Client]:
    made = Client(machine)
    try:
        made.heard("ready")
        yield made
    finally:
        made.end()


def until(mpsd: Mpsd, topic: str) -> Event:
    for event in mpsd.events(timeout_seconds=EVENT_SECONDS):
        if isinstance(event, Event) and event.topic == topic:
            return event
    raise AssertionError(f"no {topic} came")


@pytest.mark.deadline(400)
def test_a_contained_fault_from_the_page_tables_to_the_event(device: Device, machine: Machine) -> None:
    """The daemon sets the module to contain, names the culprit as proven and ends it; the other client does not notice."""
    machine.configure(FORGIVING)
    start(machine)
    with client_of(machine) as innocent, client_of(machine) as culprit, machine.mpsd() as mpsd:
        mpsd.subscribe("fault.*")
        culprit.fault()
        records = device.wait(Kind.STOPPED)
        facts = until(mpsd, "fault.culprit").facts
        assert (facts["culprit"]["pid"], facts["confidence"], facts["fault_class"]) == (culprit.pid, "proven", "mmu")
        assert [each.tgid for each in records] == [culprit.pid] * len(records)
        report = mpsd.ask(calls.fault_get(facts["number"]))
        (evidence,) = [each for each in report.evidence if each.source == "kmod" and each.is_proof]
        assert evidence.process is not None
        assert (evidence.process.pid, evidence.address) == (culprit.pid, ADDRESS)
        assert report.victims == ()
        assert culprit.process.wait(EVENT_SECONDS) == -signal.SIGKILL
        assert innocent.process.poll() is None
        tell(fact="record", value=f"{records[0].story} tgid {records[0].tgid} at {records[0].address:#x}")
        tell(fact="event", value=json.dumps({"topic": "fault.culprit", **facts}, default=str))
    assert machine.bugs() == []
