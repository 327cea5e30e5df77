"""A user has mpsd end the GPU work of their own client, which is stopped: the server that others share would wait for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from mpsd_client import Refused, calls

from tests.hostile.attacker import NOBODY
from tests.integration.cgroup import freeze, open_cgroup
from tests.integration.client import Client
from tests.integration.machine import UIDS, Machine
from tests.integration.process import state_of, wait_for

# List a directory into memory that a userfaultfd(2) leaves without pages: the kernel keeps the lock of the directory.
HOLD = """
import ctypes, fcntl, mmap, os, platform, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
userfaultfd, getdents = {"x86_64": (323, 217), "aarch64": (282, 61)}[platform.machine()]
directory = os.open(sys.argv[1], os.O_RDONLY)
pages = mmap.mmap(-1, 4 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
faults = libc.syscall(userfaultfd, os.O_CLOEXEC)
if faults < 0:
    sys.exit(f"skip: {os.strerror(ctypes.get_errno())}")
fcntl.ioctl(faults, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
fcntl.ioctl(faults, 0xC020AA00, struct.pack("QQQQ", start, len(pages), 1, 0))
listing = threading.Thread(target=libc.syscall, args=(getdents, directory, ctypes.c_void_p(start), len(pages)), daemon=True)
listing.start()
os.read(faults, 32)
print("held", flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Let each look for a name in the directory wait that the kernel has not cached."""
    command = [sys.executable, "-c", HOLD, str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as holder, ExitStack() as ends:
        ends.callback(holder.kill)
        assert holder.stdout is not None
        if (said := holder.stdout.readline()) != b"held\n":
            pytest.skip(f"no userfaultfd here: {said.decode()}")
        maker = subprocess.Popen(["mkdir", directory / "queued"], user=NOBODY, stderr=subprocess.DEVNULL)
        ends.callback(maker.wait)
        ends.callback(holder.kill)  # the mkdir ends then: it has no right to make the directory
        wait_for("a mkdir that waits", lambda: state_of(maker.pid) == "D")
        yield


def test_the_work_of_a_stopped_client_is_not_ended(machine: Machine) -> None:
    """It silenced the domain, and all clients there stood still."""
    machine.start("-multiuser-server")
    own, victim = machine.counter(uid=NOBODY).ready(), machine.counter(uid=UIDS[0]).ready()
    assert machine.domain_of(own) == machine.domain_of(victim)
    os.kill(own.pid, signal.SIGSTOP)
    try:
        wait_for("the stop of a client", lambda: state_of(own.pid) == "T")
        with machine.mpsd(uid=NOBODY) as mpsd, pytest.raises(Refused, match="is stopped"):
            mpsd.ask(calls.client_terminate(own.pid))
        victim.goes_on()
        assert not machine.journal("domain.hindered")
    finally:
        with suppress(ProcessLookupError):
            os.kill(own.pid, signal.SIGCONT)
    with machine.mpsd(uid=NOBODY) as mpsd:
        mpsd.ask(calls.client_terminate(own.pid))
    victim.goes_on()


def a_counter(machine: Machine, *, is_leaving: bool = True) -> Client:
    """Return a client of the user that counts.  is_leaving: without its first thread."""
    if not is_leaving:
        return machine.counter(uid=NOBODY).ready()
    words = ("--seconds", "600", "--ms", "50", "--kernel-us", "3000", "--leave-first")
    client = machine.client("counter", *words, uid=NOBODY, stdin=subprocess.PIPE).ready()
    assert client.process.stdin is not None
    client.process.stdin.close()
    wait_for("the end of its first thread", lambda: state_of(client.pid) == "Z")
    client.goes_on()
    return client


def test_nor_is_that_of_one_whose_first_thread_has_ended(machine: Machine) -> None:
    """mpsd looked at that thread alone, and took the client for one that runs: the others there stood still as long as its user
    liked."""
    machine.start("-multiuser-server")
    own, victim = a_counter(machine), machine.counter(uid=UIDS[0]).ready()
    assert machine.domain_of(own) == machine.domain_of(victim)
    os.kill(own.pid, signal.SIGSTOP)
    wait_for("the stop of its other thread", lambda: os.waitid(os.P_PID, own.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    with machine.mpsd(uid=NOBODY) as mpsd, pytest.raises(Refused, match="is stopped"):
        mpsd.ask(calls.client_terminate(own.pid))
    victim.goes_on()
    with machine.mpsd(uid=NOBODY) as mpsd:
        [stopped] = mpsd.ask(calls.client_stop(own.pid)).processes
    assert stopped.steps[:2] == ("thaw", "terminate")
    assert not machine.journal("domain.hindered")
    victim.goes_on()


@pytest.mark.parametrize("is_leaving", [False, True], ids=["whole", "without its first thread"])
def test_the_work_of_a_frozen_client_is_not_ended(machine: Machine, is_leaving: bool) -> None:
    """Its user needs no help for that in a cgroup of their own; /proc shows it like any process that waits.

    The kernel moves no thread that has ended, and mpsd looked at the cgroup of the first one.
    """
    machine.start("-multiuser-server")
    own, victim = a_counter(machine, is_leaving=is_leaving), machine.counter(uid=UIDS[0]).ready()
    assert machine.domain_of(own) == machine.domain_of(victim)
    with open_cgroup() as cgroup, machine.mpsd(uid=NOBODY) as mpsd:
        freeze(cgroup, own)
        with pytest.raises(Refused, match="is frozen with its cgroup"):
            mpsd.ask(calls.client_terminate(own.pid))
        [left] = mpsd.ask(calls.client_stop(own.pid)).processes
        assert "is frozen with its cgroup" in left.why
        victim.goes_on()
        assert not machine.journal("domain.hindered")
        (cgroup / "cgroup.freeze").write_text("0")
        mpsd.ask(calls.client_terminate(own.pid))
    victim.goes_on()


@pytest.mark.parametrize("is_frozen", [False, True], ids=["runs", "is frozen"])
def test_a_client_whose_cgroup_another_user_holds_is_ended(machine: Machine, is_frozen: bool) -> None:
    """mpsd took it for a frozen one: any user could keep any client from being ended.  One that is frozen is killed soon."""
    machine.start("-multiuser-server")
    own, victim = machine.counter(uid=NOBODY).ready(), machine.counter(uid=UIDS[0]).ready()
    assert machine.domain_of(own) == machine.domain_of(victim)
    with open_cgroup() as cgroup:
        inner = cgroup / "inner"
        inner.mkdir()
        with open(inner / "cgroup.procs", "w") as members, open(inner / "cgroup.events") as state, held(inner):
            members.write(str(own.pid))
            members.flush()
            if is_frozen:
                (cgroup / "cgroup.freeze").write_text("1")
                wait_for("a frozen cgroup", lambda: state.seek(0) or "frozen 1" in state.read())
            may_end_first = suppress(Refused) if is_frozen else nullcontext()  # its process, before its server looks for it
            with machine.mpsd(uid=NOBODY) as mpsd, may_end_first:
                mpsd.ask(calls.client_terminate(own.pid))
            if is_frozen:
                assert {entry["signal"] for entry in machine.journal("client.signalled")} == {"SIGCONT", "SIGKILL"}
        victim.goes_on()
