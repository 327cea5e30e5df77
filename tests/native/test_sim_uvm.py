"""The simulator's UVM: who can see a fault, what a range takes, and what a held address space puts off."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon, needs_root  # noqa: F401
from tests.native.sim_machine import Client, Machine, eventually, open_machine
from tests.native.sim_space import FATAL_FAULT, GPU_FAULT, Space
from tests.native.test_sim_driver import DRIVER, drive

HOLE, READ_ONLY = 1, 3
READ, WRITE, ATOMIC = 1, 2, 3
FAR, ARRAY = 0x7000DEAD0000, 0x100000

# mode, faultType, accessType, address (None: wherever the memory was)
SEEN = [
    ("oob_write", HOLE, WRITE, FAR),
    ("oob_read", HOLE, READ, FAR),
    ("oob_atomic", HOLE, ATOMIC, FAR),
    ("null_write", HOLE, WRITE, 0),
    ("near_null_write", HOLE, WRITE, 0x1000),
    ("array_null_write", HOLE, WRITE, ARRAY),
    ("array_null_read", HOLE, READ, ARRAY),
    ("use_after_free", HOLE, WRITE, None),
    ("managed_freed", HOLE, WRITE, None),
    ("managed_oob", HOLE, WRITE, None),
    ("ro_write", READ_ONLY, WRITE, None),
]
pytestmark = pytest.mark.slow
UNSEEN = ["trap", "misaligned", "illegal_instruction", "stack_overflow", "assert_fail", "out_of_memory"]


def ready(mps: Machine, *arguments: str, **knobs: str) -> Client:
    client = mps.client(*arguments, **knobs)
    client.wait_for("ready")
    return client


def files(machine: Machine) -> list[str]:
    return sorted(path.name for path in (machine.place / "machine/uvm").iterdir())


@contextmanager
def faulted(mps: Machine, mode: str) -> Iterator[Space]:
    """The address space of a culprit that has its error; its queue was attached before."""
    culprit = ready(mps, "faulter", mode, "--gate")
    with Space(culprit) as space:
        space.attach()
        culprit.open_gate()
        assert culprit.wait_for("result")["code"] == 700
        yield space


def kmsg_ns(line: str) -> int:
    return int(line.split(",")[2]) * 1000


def test_both_files_are_there_before_a_context_and_registered_with_it(mps: Machine) -> None:
    without, with_context = ready(mps, "hold", "--init-only"), ready(mps, "hold")
    with Space(without) as early, Space(with_context) as late:
        assert early.page() == (0x534D5655, 1, 0, 0, 0, 0, 0)
        assert late.page() == (0x534D5655, 1, 0, 1, 0, 0, 0)


def test_the_files_have_gone_however_the_client_went(mps: Machine) -> None:
    mps.run("hold", "--seconds", "0")
    killed = ready(mps, "hold")
    assert files(mps) == [f"{killed.pid}.{what}" for what in ("control", "events", "space")]
    killed.kill()
    eventually(lambda: files(mps) == [])


@pytest.mark.parametrize(("mode", "fault", "access", "address"), SEEN, ids=[row[0] for row in SEEN])
def test_the_culprits_queue_and_no_other_has_the_access(
    mps: Machine, mode: str, fault: int, access: int, address: int | None
) -> None:
    victim, culprit = ready(mps, "counter", "--seconds", "8"), ready(mps, "faulter", mode, "--gate")
    with Space(victim) as theirs, Space(culprit) as mine:
        theirs.attach(), mine.attach()
        culprit.open_gate()
        assert culprit.wait_for("result")["code"] == 700
        assert victim.end()["code"] == 700
        entries = mine.entries()
        assert [(entry.event, entry.fault, entry.access) for entry in entries] == [
            (GPU_FAULT, fault, access),
            (FATAL_FAULT, fault, access),
        ]
        assert len({entry.address for entry in entries}) == 1
        assert address in (None, entries[0].address)
        assert all(entry.time_ns < kmsg_ns(line) for entry in entries for line in mps.xids())
        assert theirs.entries() == []


def test_a_copy_engine_reports_page_after_page(mps: Machine) -> None:
    with faulted(mps, "copy") as space:
        entries = space.entries()
    assert [entry.event for entry in entries] == [GPU_FAULT] * 40 + [FATAL_FAULT]
    assert {(entry.fault, entry.access) for entry in entries} == {(HOLE, WRITE)}
    addresses = [entry.address for entry in entries[:-1]]
    assert addresses[::2] == addresses[1::2] == sorted(set(addresses))


@pytest.mark.parametrize("mode", UNSEEN)
def test_what_is_no_bad_access_is_in_no_queue(mps: Machine, mode: str) -> None:
    culprit = ready(mps, "faulter", mode, "--gate")
    with Space(culprit) as space:
        space.attach()
        culprit.open_gate()
        culprit.end()
        assert space.entries() == []


def test_nobody_is_told_who_has_not_attached(mps: Machine) -> None:
    culprit = ready(mps, "faulter", "oob_write", "--gate")
    with Space(culprit) as space:
        culprit.open_gate()
        culprit.end()
        assert space.entries() == []
        assert space.page().dropped == 0


def test_a_full_queue_drops_and_counts(mps: Machine) -> None:
    culprit = ready(mps, "faulter", "oob_write", "--gate")
    with Space(culprit) as space:
        space.attach()
        space.fill_queue()
        culprit.open_gate()
        assert culprit.wait_for("result")["code"] == 700
        assert space.page().dropped == 2


LOW = (0x10000, 0x1F0000)
AROUND_FAR = (0x7000DEA00000, 0x200000)
ABSORBED = [
    ("array_null_write", LOW),
    ("array_null_read", LOW),
    ("oob_write", AROUND_FAR),
    ("oob_read", AROUND_FAR),
    ("oob_atomic", AROUND_FAR),
    ("copy", (0x100000000000, 0x600000000000)),
]


@pytest.mark.parametrize(("mode", "where"), ABSORBED, ids=[row[0] for row in ABSORBED])
def test_a_sparse_range_takes_the_access_and_nobody_suffers(mps: Machine, mode: str, where: tuple[int, int]) -> None:
    victim, culprit = ready(mps, "counter", "--seconds", "1"), ready(mps, "faulter", mode, "--gate")
    with Space(culprit) as space:
        space.attach()
        space.lay(where)
        culprit.open_gate()
        assert culprit.wait_for("result")["code"] == 0
        assert culprit.wait_for("next")["code"] == 0
        culprit.end()
        assert culprit.process.returncode == 0
        assert space.entries() == []
    assert victim.end()["event"] == "end"
    assert mps.xids() == []


@pytest.mark.parametrize(
    ("mode", "where", "is_sparse"),
    [("array_null_write", LOW, False), ("near_null_write", LOW, True), ("oob_write", LOW, True)],
    ids=["not sparse yet", "below it", "beyond it"],
)
def test_other_ranges_take_nothing(mps: Machine, mode: str, where: tuple[int, int], is_sparse: bool) -> None:
    culprit = ready(mps, "faulter", mode, "--gate")
    with Space(culprit) as space:
        space.lay(where, is_sparse=is_sparse)
        culprit.open_gate()
        assert culprit.wait_for("result")["code"] == 700
        culprit.end()
    assert culprit.process.returncode == 5


def test_a_write_that_runs_over_into_a_range_is_done_as_far_as_there_is_memory(machine: Machine) -> None:
    assert drive(machine, "overrun") == {"inside": 0, "whole": 512, "copied": 0}


def killed_under_hold(mps: Machine, *arguments: str) -> tuple[Client, Space]:
    """Yield a client that has died in the middle of a kernel, and the holder of its descriptors."""
    culprit = ready(mps, "faulter", *arguments, "--gate")
    space = Space(culprit)
    culprit.open_gate()
    culprit.process.wait()
    assert culprit.process.returncode == -signal.SIGKILL
    return culprit, space


def test_a_held_address_space_saves_the_others_until_the_kernel_has_ended(mps: Machine) -> None:
    victim = ready(mps, "counter", "--seconds", "2.5")
    _, space = killed_under_hold(mps, "killed", "--kernel-ms", "1000")
    with space:
        assert victim.end()["event"] == "end"
    assert mps.xids() == []
    eventually(lambda: files(mps) == [])


@pytest.mark.parametrize("arguments", [("killed_hang",), ("killed", "--kernel-ms", "60000")], ids=["endless", "a minute"])
def test_letting_go_of_work_that_runs_is_what_kills_the_others(mps: Machine, arguments: tuple[str, ...]) -> None:
    victim = ready(mps, "counter", "--seconds", "20")
    culprit, space = killed_under_hold(mps, *arguments)
    server = mps.server()
    eventually(lambda: str(culprit.pid) not in mps.ask(f"get_client_list {server}").split())
    time.sleep(0.1)  # many looks of the server
    assert mps.ask(f"get_server_status {server}") == "ACTIVE\n"
    space.close()
    assert victim.end()["code"] == 700
    eventually(lambda: mps.xids() and f"31, pid={server}," in mps.xids()[0])


def dies_in_queue(mps: Machine, *milliseconds: str) -> Space:
    """Holds what it left: a kernel of each length, of which the first runs."""
    process = subprocess.Popen(
        [sys.executable, "-I", DRIVER, "die_in_queue", *milliseconds],
        env=mps.library_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    mps.started.append(process)
    culprit = Client(process)
    culprit.wait_for("ready")
    space = Space(culprit)
    culprit.open_gate()
    process.wait()
    return space


def test_work_that_was_queued_is_waited_for_too(mps: Machine) -> None:
    victim = ready(mps, "counter", "--seconds", "20")
    with dies_in_queue(mps, "50", "600000"):
        time.sleep(0.2)  # the first kernel is over
        assert mps.ask(f"get_server_status {mps.server()}") == "ACTIVE\n"
    assert victim.end()["code"] == 700


def test_a_queue_that_is_done_harms_nobody(mps: Machine) -> None:
    victim = ready(mps, "counter", "--seconds", "1.5")
    with dies_in_queue(mps, "100", "200", "100"):
        assert files(mps)
        eventually(lambda: len(files(mps)) == 3)  # those of the victim: nothing is waited for any more
    assert victim.end()["event"] == "end"


@pytest.mark.parametrize("mode", ["killed", "killed_hang"])
def test_what_nobody_holds_kills_the_others_at_once(mps: Machine, mode: str) -> None:
    victim, culprit = ready(mps, "counter", "--seconds", "8"), ready(mps, "faulter", mode)
    culprit.end()
    assert culprit.process.returncode == -signal.SIGKILL
    assert victim.end()["code"] == 700


def test_work_of_a_frozen_client_ends(mps: Machine) -> None:
    """As on the device: a client that is frozen, drained and then killed harms no other."""
    victim = ready(mps, "counter", "--seconds", "1.2")
    frozen = mps.client("counter", "--kernel-us", "200000", "--seconds", "30")
    frozen.wait_for("ready")
    frozen.process.send_signal(signal.SIGSTOP)
    time.sleep(0.4)  # until its work is over
    frozen.kill()
    assert victim.end()["event"] == "end"


def test_a_descriptor_that_is_merely_opened_holds_nothing(mps: Machine) -> None:
    victim, culprit = ready(mps, "counter", "--seconds", "8"), ready(mps, "faulter", "killed_hang", "--gate")
    with (mps.place / f"machine/uvm/{culprit.pid}.space").open("r+b"):
        culprit.open_gate()
        culprit.end()
        assert victim.end()["code"] == 700


def test_lost_events_are_counted_and_the_fault_goes_its_way() -> None:
    with open_machine(MPSD_SIM_UVM_LOSS="100", MPSD_SIM_XID_LOSS="100") as mps:
        mps.start()
        with faulted(mps, "oob_write") as space:
            assert (space.entries(), space.page().dropped) == ([], 2)
        assert mps.xids() == []


def test_some_are_lost_and_some_are_not() -> None:
    with open_machine(MPSD_SIM_UVM_LOSS="50", MPSD_SIM_SEED="7") as mps:
        mps.start()
        with faulted(mps, "copy") as space:
            found, dropped = len(space.entries()), space.page().dropped
    assert found + dropped == 41
    assert 5 < dropped < 36


def test_xids_can_be_late() -> None:
    with open_machine(MPSD_SIM_XID_DELAY_MS="300") as mps:
        mps.start()
        said = mps.client("faulter", "oob_write").wait_for("fault")["monotonic_ns"]
        xid = eventually(mps.xids)[0]
    assert kmsg_ns(xid) - said >= 300_000_000


def test_a_client_without_mps_has_them_too(machine: Machine) -> None:
    with faulted(machine, "oob_write") as space:
        assert [entry.event for entry in space.entries()] == [GPU_FAULT, FATAL_FAULT]


@needs_root
def test_another_user_has_an_address_space_too(mps: Machine) -> None:
    """The server is that user's as well, and takes the files away."""
    ready(mps, "hold", "--seconds", "0", CUDA_MPS_PIPE_DIRECTORY="/nowhere").end()
    client = mps.client("hold", uid=12345)
    client.wait_for("ready")
    with Space(client) as space:
        assert space.page().registered == 1
    assert {path.stat().st_uid for path in (mps.place / "machine/uvm").iterdir()} == {12345}
    client.kill()
    eventually(lambda: files(mps) == [])


def test_the_files_are_their_owners_alone(mps: Machine) -> None:
    client = ready(mps, "hold")
    uvm = mps.place / "machine/uvm"
    assert {(path.name.split(".")[1], path.stat().st_mode & 0o777) for path in Path(uvm).iterdir()} == {
        ("space", 0o600),
        ("control", 0o600),
        ("events", 0o600),
    }
    client.kill()
