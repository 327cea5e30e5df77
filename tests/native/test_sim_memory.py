"""The simulator's memory: many allocations, stream-ordered, shared, guarded; and the attributes of an address."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpsd.model.arena import FIRST_ADDRESS
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import ROOT, Client, Machine, eventually, open_machine
from tests.native.sim_space import GPU_FAULT, Space
from tests.native.test_sim_driver import drive

MEMORY = Path(__file__).with_name("sim_memory.py")
GUARDS = Path(__file__).with_name("sim_guards.py")
NO_ADDRESS, NO_DEVICE, IN_USE = 0x1E, 0x26, 0x68
WRITE = 2


def drive_memory(machine: Machine, *arguments: str) -> dict[str, Any]:
    return drive(machine, *arguments, program=MEMORY)


def drive_guards(machine: Machine, *arguments: str) -> dict[str, Any]:
    return drive(machine, *arguments, program=GUARDS)


@contextmanager
def client_of(machine: Machine, program: Path, *arguments: str) -> Iterator[Client]:
    """Start a verb that reports its actions, and continues when its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-I", program, *arguments],
        env=machine.library_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    machine.started.append(process)
    yield Client(process)


@pytest.mark.slow
@pytest.mark.deadline(120)
def test_the_last_of_many_costs_no_more_than_the_first() -> None:
    """Were anything looked for from the beginning each time, the last tenth would take nineteen times as long."""
    with open_machine(MPSD_SIM_MEMORY_MIB="200000") as machine:
        for first, last in drive_memory(machine, "many", "20000")["tenths"]:
            assert last < 6 * max(first, 0.02)


@pytest.mark.slow
@pytest.mark.deadline(120)
def test_thousands_are_exported_mapped_and_adopted_and_their_memory_comes_back(machine: Machine) -> None:
    count = min(6000, os.sysconf("SC_OPEN_MAX") - 500)
    found = drive_memory(machine, "adopt_many", str(count))
    assert (found["freed_while_exported"], found["wrong"]) == (0, 0)
    assert 2 * count - 2 <= found["freed_after"] <= 2 * count


def test_what_a_process_has_twice_is_there_until_both_have_gone(machine: Machine) -> None:
    assert drive_memory(machine, "twice_in_a_process") == {"one_left": 2, "mapped": 2, "in_the_end": 0}


def test_memory_that_was_not_exported_goes_with_its_process(machine: Machine) -> None:
    before = machine.used_mib()
    drive_memory(machine, "pointers")
    assert machine.used_mib() == before
    assert list((machine.place / "machine/memory").iterdir()) == []


def test_freed_memory_of_a_pool_stays_mapped_and_serves_again(machine: Machine) -> None:
    found = drive_memory(machine, "pool")
    assert found == {"twice": 1, "kept": 8, "wild": 0, "is_same": True, "used": 8, "after": 0}


def test_what_is_known_of_an_address(machine: Machine) -> None:
    found = drive_memory(machine, "pointers")
    assert found == {
        "types": [2, 1, 2],
        "managed": [0, 1],
        "has_pool": [False, True],
        "mapped": [True, 2 << 20],
        "unknown": [{"code": 1}, 0, -2],
        "pitch": [1024, 12288],
        "name": "tick",
        "free_mapped": 1,
        "free_host": 1,
        "free_inside": 1,
    }


def test_a_graph_is_what_a_stream_was_told_while_it_captured(machine: Machine) -> None:
    found = drive_memory(machine, "graph")
    assert found == {"state": 1, "before": 0, "after": 64, "spoiled": [900, 901, None]}


def test_all_ways_to_launch_do_the_same(machine: Machine) -> None:
    assert drive_memory(machine, "launches") == {"count": 4 * 32, "flags": 1}


def test_allocated_memory_is_another_process_s_too(machine: Machine) -> None:
    before = machine.used_mib()
    with client_of(machine, MEMORY, "ipc_give") as giver:
        assert giver.process.stdin
        assert giver.process.stdout
        given = json.loads(giver.process.stdout.readline())
        assert (given["own"], given["cost"]) == (201, 0)
        found = drive_memory(machine, "ipc_take", given["handle"])
        assert found == {"wrong": 0, "is_same": True, "still": 0, "third": 1}
        giver.process.stdin.close()
        assert giver.process.stdout.readline() == '{"wrong": 8}\n'
        giver.process.wait()
    eventually(lambda: machine.used_mib() == before)


def test_guards_are_refused_as_the_module_refuses_them(machine: Machine) -> None:
    assert drive_guards(machine, "refusals") == {
        "base 0": NO_ADDRESS,
        "not of pages": NO_ADDRESS,
        "over memory": IN_USE,
        "reaching into memory": IN_USE,
        "in a window": 0,
        "the same": IN_USE,
        "overlapping": IN_USE,
        "sparse over nothing": NO_ADDRESS,
        "free a part": NO_ADDRESS,
        "free": 0,
        "free twice": NO_ADDRESS,
        "free memory": NO_ADDRESS,
        "4 KiB sparse": NO_ADDRESS,
        "another GPU": NO_DEVICE,
        "another number": -1,
        "nothing": -1,
    }


def test_a_guard_takes_what_runs_over_and_gives_way_to_memory_when_it_is_freed(machine: Machine) -> None:
    found = drive_guards(machine, "guarded")
    assert found == {"laid": [0, 0, 0, 0], "over": 0, "inside": 0x10000 // 8, "freed": 0, "is_back": True}


def test_a_thousand_guards_are_no_more_than_ten(machine: Machine) -> None:
    assert drive_guards(machine, "thousand_guards", "1000") == {"laid": [0], "write": 0}


@pytest.mark.parametrize("with_daemon", [False, True], ids=["alone", "under MPS"])
def test_sparse_over_live_memory_is_accepted_and_is_the_end(machine: Machine, with_daemon: bool) -> None:
    if with_daemon:
        machine.start()
    assert drive_guards(machine, "sparse_over_memory") == {"status": 0, "code": 715}


def test_a_managed_guard_tells_of_each_page_once_and_harms_nobody(mps: Machine) -> None:
    victim = mps.client("counter", "--seconds", "0.3")
    victim.wait_for("ready")
    with client_of(mps, GUARDS, "managed_guard") as client:
        window = client.wait_for("ready")["window"]
        with Space(client) as space:
            space.attach()
            client.open_gate()
            assert client.wait_for("end") | {"code": 0, "word": 4096} == client.events[-1]
            entries = space.entries()
    assert [(each.event, each.access, each.address - window) for each in entries] == [
        (GPU_FAULT, WRITE, 4096),
        (GPU_FAULT, WRITE, 0x10000),
    ]
    assert victim.end()["event"] == "end"
    assert mps.xids() == []


def test_windows_begin_above_where_the_driver_puts_its_own() -> None:
    """An arena's addresses are free in every process, after any earlier allocations."""
    source = (ROOT / "native/sim/driver/addresses.c").read_text()
    assert f"#define LAST_ADDRESS {FIRST_ADDRESS:#x}ull" in source
