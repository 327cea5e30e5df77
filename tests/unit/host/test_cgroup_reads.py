"""Which process reads the cgroups of a client: before Linux 6.8 every user can make that wait."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mpsd.host import cgroups, client_facts, processes
from mpsd.host.client_facts import ClientFacts
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import CgroupLook
from mpsd.host.process_reader import Unanswered
from mpsd.model.process import Credentials, ProcessId
from tests.cgroup_files import CgroupFiles
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
    with pytest.raises(Unreadable, match="its cgroups cannot be read"):
        facts.identify(client, Credentials(client.pid, 17, 18))


async def test_a_client_is_read_where_no_hierarchy_is_mounted(client: ProcessId, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no cgroup of any process there, as in a small virtual machine; each client waited for ever."""

    async def nothing(pid: int) -> CgroupLook:
        return CgroupLook("", processes.reader.stat(pid))

    monkeypatch.setattr(INSPECTOR, "cgroup", nothing)
    facts = ClientFacts(INSPECTOR)
    with pytest.raises(Unreadable) if cgroups._ARE_SHOWN else contextlib.nullcontext():
        await facts.read(client)
    monkeypatch.setattr(cgroups, "_ARE_SHOWN", False)
    await facts.read(client)
    assert facts.identify(client, Credentials(client.pid, 17, 18)).cgroups == ()


async def test_a_client_of_many_long_cgroups_is_identified_by_them(client: ProcessId, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 with Kubernetes: over 1,024 characters were read again on the event loop, and a wait there held the client."""
    paths = tuple(f"/kubepods/{each}/{'0' * 64}" for each in range(30))
    look = CgroupLook("".join(f"{each}:memory:{path}\n" for each, path in enumerate(paths)), processes.reader.stat(client.pid))

    async def many(pid: int) -> CgroupLook:
        return look

    monkeypatch.setattr(INSPECTOR, "cgroup", many)
    monkeypatch.setattr(processes.cgroup_reader, "cgroup", waits)
    facts = ClientFacts(INSPECTOR)
    await facts.read(client)
    assert facts.identify(client, Credentials(client.pid, 17, 18)).cgroups == paths


async def test_cgroups_of_all_are_kept_up_to_a_number_of_characters(client: ProcessId, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users choose their lengths, and how many of their processes connect."""
    me = processes.find(os.getpid())
    assert me is not None
    facts = ClientFacts(INSPECTOR)
    await facts.read(client)
    await facts.read(client)
    monkeypatch.setattr(client_facts, "_CGROUP_CHARACTERS", max(len("".join(cgroups.paths(each.pid))) for each in (me, client)))
    await facts.read(me)
    assert list(facts._known) == ([me] if cgroups.paths(me.pid) else [client, me])
    facts.forget(me)
    facts.forget(client)
    assert facts._characters == 0


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


async def test_a_read_that_waits_longer_than_others_may_is_answered(tmp_path: Path) -> None:
    """Before Linux 6.8 one user holds the lock for half a second, again and again: each newcomer's read was given up."""
    files = CgroupFiles(tmp_path)
    inspector, held = files.inspector(0.3), files.hold(7)

    def hold() -> None:
        with held.open("w") as file:  # once the read has begun
            time.sleep(0.5)  # past the deadline of other reads
            held.unlink()
            held.write_text("0::/a\n")
            file.write("0::/a\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, hold)
        assert (await inspector.cgroup(7)).text == "0::/a\n"
    inspector.close()


async def test_the_cgroups_of_many_are_read_at_once(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path)
    inspector, pids = files.inspector(5.0), range(1, 200)
    for pid in pids[1:]:
        files.put(pid, f"/{pid}")
    (tmp_path / "proc/200/cgroup").mkdir(parents=True)
    found = await inspector.cgroups([*pids, 200], 1000, 30.0)
    assert found == {1: ""} | {pid: f"1:cpu:/other\n0::/{pid}\n" for pid in pids[1:]}, "the last one cannot be read"
    inspector.close()
