"""Programs under the shim, with a real daemon: leases, first errors, memory that outlives them, guards that report."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import calls

from tests.integration.client import Client
from tests.integration.machine import ROOT, Machine, open_machine
from tests.integration.process import wait_for

SHIM = ROOT / "clients/shim/libmpsd.so"
GIB = 1 << 30


@pytest.fixture(scope="module")
def daemon(programs: None) -> Iterator[Machine]:
    """Yield one daemon for all tests that do not harm it. A killed writer's successor waits for no co-runners."""
    assert SHIM.exists(), "run: make build"
    with open_machine() as machine:
        machine.configure('[vault]\nfence = "prompt"\n')
        machine.start()
        yield machine


def shim(machine: Machine, **variables: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(SHIM), "MPSD_LOG": str(machine.place / "shim.log"), **variables}


def told(machine: Machine, client: Client) -> str:
    """What the shim wrote to MPSD_LOG for that process."""
    path = Path(machine.place / "shim.log")
    lines = path.read_text().splitlines() if path.exists() else []
    return "\n".join(line for line in lines if line.split()[1] == str(client.pid))


def counter(machine: Machine, *words: str, **variables: str) -> Client:
    words = words or ("--seconds", "600")
    return machine.client("counter", "--ms", "50", "--kernel-us", "3000", *words, **shim(machine, **variables))


def memory(machine: Machine, *words: str, status: int = 0, **variables: str) -> list[dict[str, Any]]:
    """Each allocation of a program that ends so."""
    client = machine.client("shim_arena", *words, **shim(machine, **variables))
    assert client.status() == status, client.events("error")
    return client.events("memory")


def addresses(of: list[dict[str, Any]]) -> list[int]:
    return [each["address"] for each in of]


# -- leases --------------------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_the_lease_is_there_before_cuda_and_goes_with_the_process(daemon: Machine) -> None:
    """Its limits hold, as the program's own SM count shows."""
    client = counter(daemon, MPSD_LEASE_NAME="job", MPSD_LEASE_SM_PERCENT="25", MPSD_LEASE_MEMORY="8G").ready()
    with daemon.mpsd() as mpsd:
        [lease] = mpsd.ask(calls.lease_list()).items
        assert (lease.name, lease.sm_percent, set(lease.memory_bytes.values())) == ("job", 25.0, {8 * GIB})
        assert (lease.selector.kind, lease.selector.value, lease.clients) == ("pid", str(client.pid), 1)
        assert client.wait("ready")["sms"] == 32
        client.end()
        wait_for("the end of the lease", lambda: not mpsd.ask(calls.lease_list()).items)


@pytest.mark.root
def test_what_is_refused_goes_on_without_unless_it_is_required(daemon: Machine) -> None:
    first = counter(daemon, MPSD_LEASE_SM_PERCENT="90").ready()
    second = counter(daemon, "--seconds", "0.05", MPSD_LEASE_SM_PERCENT="90")
    assert second.status() == 0
    assert "going on without" in told(daemon, second)
    third = counter(daemon, MPSD_LEASE_SM_PERCENT="90", MPSD_REQUIRED="1")
    assert (third.error(), third.status()) == (805, 3)
    first.end()


@pytest.mark.root
def test_a_lease_is_waited_for_as_long_as_was_said(daemon: Machine) -> None:
    first = counter(daemon, MPSD_LEASE_SM_PERCENT="90").ready()
    second = counter(daemon, MPSD_LEASE_SM_PERCENT="90", MPSD_LEASE_WAIT="20", MPSD_REQUIRED="1")
    with daemon.mpsd() as mpsd:
        wait_for("a lease that waits", lambda: [each for each in mpsd.ask(calls.lease_list()).items if each.state == "queued"])
    first.end()
    second.ready().end()


def test_required_is_enough_to_have_mpsd(daemon: Machine) -> None:
    assert counter(daemon, "--seconds", "0.05", MPSD_REQUIRED="1").status() == 0


# -- memory that outlives the program ------------------------------------------------------------------------------------


def test_a_killed_program_finds_its_memory_again(daemon: Machine) -> None:
    """The same sizes in the same order; what is below MPSD_ARENA_MIN was never there."""
    ours = {"MPSD_ARENA": "again", "MPSD_ARENA_ADOPT": "1", "MPSD_ARENA_CAPACITY": "64M", "MPSD_ARENA_MIN": "3M"}
    before = memory(daemon, "--write", "100", "--end", "kill", "4", "8", "2", "4", status=-signal.SIGKILL, **ours)
    after = memory(daemon, "4", "8", "2", "4", **ours)
    at = addresses(before)
    assert [each["first"] for each in after] == [100, 101, 0, 103] == [each["last"] for each in after]
    assert [addresses(after)[i] for i in (0, 1, 3)] == [at[i] for i in (0, 1, 3)]


def test_memory_that_was_adopted_has_guards_around_it(daemon: Machine) -> None:
    """The shim lays guards after adopting the arena, so that none lies over adopted memory."""
    ours = {"MPSD_ARENA": "guarded", "MPSD_ARENA_ADOPT": "1", "MPSD_ARENA_CAPACITY": "64M"}
    memory(daemon, "--write", "100", "4", "8", "4", MPSD_SHIELD="absorb", **ours)
    client = daemon.client("shim_arena", "--wild", "4", "8", "4", **shim(daemon, MPSD_SHIELD="absorb", **ours))
    assert client.status() == 0
    assert [each["last"] for each in client.events("memory")] == [100, 101, 102]
    assert "shield" not in told(daemon, client)


def test_other_sizes_get_other_memory_and_what_was_freed_is_not_given_back(daemon: Machine) -> None:
    ours = {"MPSD_ARENA": "sizes", "MPSD_ARENA_ADOPT": "1", "MPSD_ARENA_CAPACITY": "64M"}
    memory(daemon, "--write", "100", "--free", "0", "4", "8", **ours)
    found = memory(daemon, "4", "6", "8", "8", **ours)
    assert [each["first"] for each in found] == [0, 0, 101, 0]


def test_without_adopting_an_arena_begins_empty(daemon: Machine) -> None:
    ours = {"MPSD_ARENA": "fresh", "MPSD_ARENA_CAPACITY": "8M"}
    memory(daemon, "--write", "100", "8", **ours)
    [found] = memory(daemon, "8", **ours)
    assert found["first"] == 0
    with daemon.mpsd() as mpsd:
        arena = mpsd.ask(calls.arena_get("fresh"))
    assert (arena.allocations, arena.used_bytes, arena.generation) == (1, 8 << 20, 2)


def test_what_waits_makes_room_for_what_is_asked_for(daemon: Machine) -> None:
    ours = {"MPSD_ARENA": "room", "MPSD_ARENA_ADOPT": "1", "MPSD_ARENA_CAPACITY": "8M"}
    memory(daemon, "--write", "100", "8", **ours)
    found = memory(daemon, "6", **ours)
    with daemon.mpsd() as mpsd:
        assert mpsd.ask(calls.arena_get("room")).base <= found[0]["address"] < mpsd.ask(calls.arena_get("room")).base + GIB


def test_beyond_the_capacity_the_driver_allocates(daemon: Machine) -> None:
    found = memory(daemon, "4", "8", MPSD_ARENA="small", MPSD_ARENA_CAPACITY="4M")
    with daemon.mpsd() as mpsd:
        arena = mpsd.ask(calls.arena_get("small"))
    assert arena.allocations == 1
    assert [arena.base <= at < arena.base + arena.window_bytes for at in addresses(found)] == [True, False]


def test_an_arena_that_others_have_laid_out_is_left_alone(daemon: Machine) -> None:
    """The shim keeps their arena, and gives the program the driver's memory."""
    theirs = [sys.executable, str(ROOT / "tests/integration/arena_program.py"), "write_and_die", "theirs"]
    subprocess.run(theirs, env=daemon.variables, capture_output=True, timeout=20, check=False)
    with daemon.mpsd() as mpsd:
        before = mpsd.ask(calls.arena_get("theirs"))
        [found] = memory(daemon, "4", MPSD_ARENA="theirs")
        after = mpsd.ask(calls.arena_get("theirs"))
    assert before.allocations
    assert (after.layout_hash, after.allocations) == (before.layout_hash, before.allocations)
    assert not before.base <= found["address"] < before.base + before.window_bytes


# A writer whose layout gives the same memory to two requests.
FORGES = """
from mpsd_client import Arena
arena = Arena.create("forged", 8 << 20)
block = arena.allocate(4 << 20)
entry = f"[{block.offset}, {block.bytes}]"
arena.commit(('{"format": "mpsd-shim-1", "allocations": [' + f"{entry}, {entry}" + "]}").encode())
arena.close()
"""


def test_no_two_requests_get_the_same_memory(daemon: Machine) -> None:
    """Whoever may write an arena may have written its layout."""
    subprocess.run([sys.executable, "-c", FORGES], env=daemon.variables, timeout=20, check=True)
    first, second = addresses(memory(daemon, "4", "4", MPSD_ARENA="forged", MPSD_ARENA_ADOPT="1"))
    assert first != second


# -- errors and guards ---------------------------------------------------------------------------------------------------


@pytest.mark.root
def test_a_wild_access_is_told_and_ends_its_process_alone(daemon: Machine) -> None:
    """Proven, by client and address; who shares its domain goes on."""
    other = daemon.counter().ready()
    client = daemon.client("shim_arena", "--wild", "--end", "stay", "4", **shim(daemon, MPSD_SHIELD="report"))
    address = client.wait("wild")["address"]
    assert daemon.domain_of(other) == daemon.domain_of(client)
    assert client.status() == -signal.SIGKILL
    with daemon.mpsd() as mpsd:
        fault = mpsd.ask(calls.fault_get(last_fault(daemon)))
    assert (fault.confidence, fault.fault_class, fault.access, fault.address) == ("proven", "mmu", "write", address)
    assert (fault.culprit.pid, fault.victims) == (client.pid, ())
    other.goes_on()
    other.end()


def last_fault(machine: Machine) -> int:
    return int(machine.journal("fault.opened")[-1]["number"])


@pytest.mark.root  # otherwise the report could reach mpsd before the client does
def test_the_first_error_is_told_once_with_its_kernel(daemon: Machine) -> None:
    client = daemon.client("faulter", "oob_write", "--after", "0.05", **shim(daemon)).ready()
    assert client.status() == 5
    wait_for("its report", lambda: [e for e in daemon.journal("fault.seen") if e["source"] == "report"])
    with daemon.mpsd() as mpsd:
        reports = [each for each in mpsd.ask(calls.fault_get(last_fault(daemon))).evidence if each.source == "report"]
    assert [(each.kernel, each.text) for each in reports] == [("oob_write", "CUDA_ERROR_ILLEGAL_ADDRESS")]


@pytest.mark.slow
def test_a_stopped_mpsd_costs_a_tenth_of_a_second(programs: None) -> None:
    """Without the shim the error comes after 15 ms here."""
    with open_machine() as machine:
        machine.start()
        client = machine.client("faulter", "oob_write", "--after", "0.1", **shim(machine)).ready()
        machine.signal_daemon("SIGSTOP")
        assert client.status() == 5
        assert 100 <= client.wait("result")["ms"] < 2000
        machine.signal_daemon("SIGCONT")
