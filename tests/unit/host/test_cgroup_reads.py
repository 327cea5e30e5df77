"""Which process reads the cgroups of a client: before Linux 6.8 every user can make that wait."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.errors import Refused
from mpsd.host import cgroups, client_facts, processes
from mpsd.host.client_facts import ClientFacts
from mpsd.host.inspector_messages import CgroupLook
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import Credentials, ProcessId
from tests.inspecting import INSPECTOR


@pytest.fixture
def client() -> Iterator[ProcessId]:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = processes.find(child.pid)
        assert process is not None
        yield process
        child.kill()


def waits(pid: int) -> CgroupLook:
    raise Unanswered(f"the event loop would wait for pid {pid}")


async def test_a_client_is_identified_by_what_was_read_as_it_connected(
    client: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop read its cgroups twice, and waited for the lock of all cgroups each time."""
    shown = cgroups.paths(client.pid)
    monkeypatch.setattr(processes.cgroup_reader, "cgroup", waits)
    facts = ClientFacts(INSPECTOR)
    await facts.read(client)
    assert facts.identify(client, Credentials(client.pid, 17, 18)).cgroups == shown
    facts.forget(client)
    with pytest.raises(Refused, match="its cgroups cannot be read"):
        facts.identify(client, Credentials(client.pid, 17, 18))


async def test_long_paths_are_not_kept_and_read_again(client: ProcessId, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users choose their lengths, and mpsd keeps those of 16,384 processes."""
    monkeypatch.setattr(client_facts, "_CGROUP_CHARACTERS", 0)
    facts = ClientFacts(INSPECTOR)
    await facts.read(client)
    assert facts._known[client].cgroups is None
    assert facts.identify(client, Credentials(client.pid, 17, 18)).cgroups == cgroups.paths(client.pid)


def test_a_look_has_what_the_kernel_shows(client: ProcessId) -> None:
    os.kill(client.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, client.pid, os.WSTOPPED | os.WNOWAIT)
    look = cgroups.read_cgroup(client.pid)
    assert look.text == Path(f"/proc/{client.pid}/cgroup").read_text()
    assert look.stat.split()[:3] == [b"%d" % client.pid, b"(sleep)", b"T"]


def test_a_process_that_has_gone_shows_nothing(client: ProcessId) -> None:
    os.kill(client.pid, signal.SIGKILL)
    os.waitpid(client.pid, 0)
    assert cgroups.read_cgroup(client.pid) == CgroupLook()
