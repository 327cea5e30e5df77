"""mpsd-sentinel on the simulator: the faults of a client that it contains, and the effects when one of its parts ends."""

import ctypes
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.sentinel_fixtures import (  # noqa: F401
    armed_sentinel,
    built_sentinel,
    count_of_descriptors,
    counter,
    hold,
    lives_on,
    shared_sm,
    two_clients,
)
from tests.native.sentinel_process import (
    ARMED,
    CONTAINED,
    FAILED,
    FAULT,
    HOLDS,
    Sentinel,
)
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon, needs_root  # noqa: F401
from tests.native.sim_machine import SANITIZER, Machine, eventually

AT_START, AT_END, AT_SHARED, AT_SECOND = 1, 8, 9, 10
PTRACE_CONT, PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 7, 0x4206, 0x40
NOT_FOUND, NOT_READY = 500, 807  # CUresult
MOST_CLIENTS = 64  # MPSD_SENTINEL_CLIENTS
USER = 1000

pytestmark = pytest.mark.skipif(SANITIZER == "thread", reason="the watcher forks")


@pytest.fixture
def stuck_sm(machine: Machine) -> None:
    """No RESUME ends an exception."""
    machine.knobs["MPSD_SIM_SM_STUCK"] = "1"


@contextmanager
def dying_slowly(pid: int) -> Iterator[None]:
    """Trace the process, so that its end waits."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_SEIZE, pid, None, PTRACE_O_TRACEEXIT) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.ptrace(PTRACE_CONT, pid, None, None)
        while not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):  # its parent learns of the end after its tracer
            pass


def state(pid: int) -> str:
    """As in /proc/PID/stat; of a process that has been reaped "Z" too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.parametrize(
    ("mode", "code", "is_named"), [("trap", 719, False), ("misaligned", 0, True), ("illegal_instruction", 715, True)]
)
def test_an_sm_exception_is_contained(mps: Machine, sentinel: Sentinel, mode: str, code: int, is_named: bool) -> None:
    victim, culprit = two_clients(mps, sentinel, mode)
    culprit.open_gate()
    assert culprit.wait_for("result")["code"] == code
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 2)
    assert mps.xids() == []
    culprit.kill()
    assert lives_on(victim)
    (fault,), holds = sentinel.of(FAULT), sentinel.of(HOLDS)
    assert (fault.pc != 0, fault.count) == (is_named, 1)
    assert {each.pid: bool(each.is_culprit) for each in holds} == {victim.pid: False, culprit.pid: is_named}
    assert all((each.status, each.count) == (0, 3) for each in holds)
    assert all((each.mapping_bytes > 0) == bool(each.is_culprit) for each in holds)


def test_the_kernels_of_a_culprit_that_hangs_are_held_beyond_its_death(mps: Machine, sentinel: Sentinel) -> None:
    victim, culprit = two_clients(mps, sentinel, "stack_overflow")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 2)
    culprit.wait_for("fault")
    assert culprit.falls_silent()
    culprit.kill()
    assert lives_on(victim)


def test_a_culprit_that_is_not_held_takes_its_co_runners_along(mps: Machine, sentinel: Sentinel) -> None:
    """It was not added, and its kernel hangs: its end takes the address space from under its warps."""
    victim = counter(mps)
    culprit = mps.client("faulter", "stack_overflow", "--linger", "60")
    assert sentinel.comes(CONTAINED)
    culprit.kill()
    assert victim.falls_silent()
    sentinel.end()
    assert victim.end()["code"] == 700


@pytest.mark.usefixtures("shared_sm")
@pytest.mark.parametrize("mode", ["misaligned", "stack_overflow"])
def test_nobody_hangs_whose_block_shared_the_sm_of_a_failed_warp(mps: Machine, sentinel: Sentinel, mode: str) -> None:
    """No resume continues such a block (measured): then all end as without a sentinel."""
    victim, culprit = two_clients(mps, sentinel, mode)
    culprit.open_gate()
    failed = sentinel.comes(FAILED)
    assert failed
    assert (failed.count, failed.status) == (AT_SHARED, 0)
    assert victim.end()["code"] in (700, 716)
    assert sentinel.process.wait(20) == 1


@pytest.mark.usefixtures("shared_sm")
def test_a_failed_containment_is_told_before_the_sentinels_client_has_ended(mps: Machine, sentinel: Sentinel) -> None:
    """The others fail meanwhile (120 ms, H200), and after a contained exception only the culprit does."""
    _victim, culprit = two_clients(mps, sentinel, "misaligned")
    (armed,) = sentinel.of(ARMED)
    with dying_slowly(armed.pid):
        culprit.open_gate()
        assert sentinel.comes(FAILED)
        eventually(lambda: state(armed.pid) == "t")
        assert sentinel.process.poll() is None
    assert sentinel.process.wait(20) == 1


@pytest.mark.usefixtures("shared_sm")
def test_blocks_that_share_an_sm_with_a_trap_continue(mps: Machine, sentinel: Sentinel) -> None:
    victim, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    assert lives_on(victim)
    assert not sentinel.of(FAILED)


def test_a_memory_fault_is_not_contained(mps: Machine, sentinel: Sentinel) -> None:
    victim, culprit = two_clients(mps, sentinel, "oob_write")
    culprit.open_gate()
    assert culprit.wait_for("result")["code"] == 700
    assert victim.end()["code"] == 700
    assert not sentinel.of(FAULT)


def test_the_server_takes_nobody_after_an_exception_until_all_have_ended(mps: Machine, sentinel: Sentinel) -> None:
    victim, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    newcomer = mps.client("counter", "--seconds", "0.05")
    assert newcomer.falls_silent()
    culprit.kill()
    assert lives_on(victim)
    assert sentinel.process.wait(20) == 0
    assert newcomer.end().get("code") in (None, NOT_READY)  # the server is about to begin anew
    eventually(lambda: mps.run("counter", "--seconds", "0.05")["event"] == "end")


def test_an_end_before_any_exception_harms_nobody(mps: Machine, sentinel: Sentinel) -> None:
    victim = counter(mps)
    client = sentinel.of(ARMED)[0].pid
    assert state(client) == "T"
    sentinel.end()
    assert sentinel.process.returncode == 0
    eventually(lambda: state(client) == "Z")
    assert lives_on(victim)
    assert str(client) not in mps.ask(f"get_client_list {mps.server()}").split()


@pytest.mark.parametrize("after", [False, True], ids=["before an exception", "after one"])
def test_a_killed_watcher_leaves_what_there_is_without_a_sentinel(mps: Machine, sentinel: Sentinel, after: bool) -> None:
    victim, culprit = two_clients(mps, sentinel, "trap")
    client = sentinel.of(ARMED)[0].pid
    if after:
        culprit.open_gate()
        assert sentinel.comes(CONTAINED)
    sentinel.process.kill()
    eventually(lambda: state(client) == "Z")
    if not after:
        victim.wait_for("tick")
        culprit.open_gate()
    assert victim.end()["code"] == 719


def test_a_client_that_somebody_continues_is_reported(mps: Machine, sentinel: Sentinel) -> None:
    os.kill(sentinel.of(ARMED)[0].pid, signal.SIGCONT)
    failed = sentinel.comes(FAILED)
    assert failed
    assert failed.count == AT_END
    assert sentinel.process.wait(20) == 1


def test_the_next_peer_gets_every_report_and_goes_on(mps: Machine, sentinel: Sentinel) -> None:
    victim, culprit = two_clients(mps, sentinel, "misaligned")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 2)
    before = list(sentinel.reports)
    sentinel.connect()
    assert sentinel.wait_for(lambda reports: len(reports) == len(before))
    assert sorted(sentinel.reports) == sorted(before)
    sentinel.end()
    assert victim.end()["code"] == 716


def test_without_cuda_it_says_so(mps: Machine, program: None) -> None:
    (mps.place / "libcuda.so.1").write_text("no library")  # before any that this machine may have
    lonely = Sentinel(mps.place, mps.library_environment(LD_LIBRARY_PATH=str(mps.place)))
    try:
        failed = lonely.comes(FAILED)
        assert failed
        assert (failed.status, failed.count) == (NOT_FOUND, AT_START)
        assert lonely.process.wait(20) == 1
    finally:
        lonely.close()


def test_a_client_that_is_added_after_an_exception_is_held_too(mps: Machine, sentinel: Sentinel) -> None:
    """The request and the exception can cross."""
    victim, culprit = two_clients(mps, sentinel, "trap")
    late = mps.client("hold")
    late.wait_for("ready")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    sentinel.add(late.pid)
    assert hold(sentinel, 3)
    late.kill()
    culprit.kill()
    assert lives_on(victim)


def test_a_client_that_is_named_again_takes_no_other_place(mps: Machine, sentinel: Sentinel) -> None:
    """Each mpsd names all clients.  After some restarts all places were taken, and a new client's end hung its co-runners."""
    victim, culprit = two_clients(mps, sentinel, "trap")
    for _ in range(MOST_CLIENTS):
        sentinel.add(victim.pid)
    late = mps.client("hold")
    late.wait_for("ready")
    sentinel.add(late.pid)
    eventually(lambda: count_of_descriptors(sentinel, "pidfd") == 4)  # of its own client, too
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 3)
    assert {each.pid for each in sentinel.of(HOLDS)} == {victim.pid, culprit.pid, late.pid}


def test_only_devices_are_held_not_what_has_their_names(mps: Machine, sentinel: Sentinel, tmp_path: Path) -> None:
    """A user who gives an own file a device's name could keep the process that holds it in close(2) for ever."""
    folder = tmp_path / "uvm"
    folder.mkdir()
    (folder / "1.space").touch()  # the simulator's devices are regular files and FIFOs
    (folder / "1.control").mkdir()
    victim, culprit = two_clients(mps, sentinel, "trap")
    opened = [os.open(each, os.O_RDONLY) for each in folder.iterdir()]
    sleeper = subprocess.Popen(["sleep", "60"], pass_fds=opened)
    mps.started.append(sleeper)  # type: ignore[arg-type]
    for each in opened:
        os.close(each)
    sentinel.add(sleeper.pid)
    culprit.open_gate()
    assert hold(sentinel, 3)
    assert [each.count for each in sentinel.of(HOLDS) if each.pid == sleeper.pid] == [1]
    sleeper.kill()
    culprit.kill()
    assert lives_on(victim)


def test_a_new_peer_has_room_for_all_reports(mps: Machine, sentinel: Sentinel) -> None:
    """A peer without room would lose its connection, as often as it connects: mpsd would take the sentinel for ended."""
    _, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    assert hold(sentinel, 2)
    for round_ in range(1, 7):
        sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(50)]
        mps.started.extend(sleepers)  # type: ignore[arg-type]
        for each in sleepers:
            sentinel.add(each.pid)
        assert hold(sentinel, 2 + 50 * round_)
        for each in sleepers:
            each.kill()
        eventually(lambda: count_of_descriptors(sentinel, "pidfd") <= 3)
    sentinel.connect()
    assert sentinel.comes(CONTAINED)
    late = mps.client("counter", "--seconds", "60", "--ms", "20")
    sentinel.add(late.pid)
    assert sentinel.wait_for(lambda reports: any(each.kind == HOLDS and each.pid == late.pid for each in reports))


@needs_root
def test_the_client_is_of_the_servers_user(mps: Machine, program: None) -> None:
    """Without that the vendor's daemon would end the user's server to start one for root."""
    theirs = Sentinel(mps.place, mps.library_environment(), "--uid", str(USER))
    try:
        armed = theirs.comes(ARMED)
        assert armed
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in Path(f"/proc/{armed.pid}/status").read_text()
        assert os.stat(f"/proc/{armed.pid}/maps").st_uid == 0, "its user may not look into it"
        assert os.stat(f"/proc/{mps.server()}").st_uid == USER
        victim = counter(mps, uid=USER)
        culprit = mps.client("faulter", "misaligned", "--gate", "--linger", "60", uid=USER)
        culprit.wait_for("ready")
        for each in (victim, culprit):
            theirs.add(each.pid)
        culprit.open_gate()
        assert theirs.comes(CONTAINED)
        assert hold(theirs, 2)
        assert [each.pid for each in theirs.of(HOLDS) if each.is_culprit] == [culprit.pid]
        assert lives_on(victim)
        theirs.process.kill()
        eventually(lambda: state(armed.pid) == "Z")
    finally:
        theirs.close()


def children(pid: int) -> list[str]:
    """Return the children that live, and those that are not reaped."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("modes", list(itertools.product(("misaligned", "trap"), repeat=2)))
def test_a_second_exception_in_the_same_server_ends_all(mps: Machine, sentinel: Sentinel, modes: tuple[str, str]) -> None:
    """After its RESUME long kernels hang (16 of 16, H200).  Each has its own program counter."""
    victim, first = two_clients(mps, sentinel, modes[0])
    second = mps.client("faulter", modes[1], "--gate", "--linger", "60")
    second.wait_for("ready")
    sentinel.add(second.pid)
    first.open_gate()
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 3)
    second.open_gate()
    failed = sentinel.comes(FAILED)
    assert failed
    assert (failed.count, failed.status) == (AT_SECOND, 0)
    assert hold(sentinel, 6)
    (_, fault), looks = sentinel.of(FAULT), sentinel.of(HOLDS)[3:]
    assert bool(fault.pc) is (modes[1] == "misaligned")
    assert [each.pid for each in looks if each.is_culprit] == ([second.pid] if fault.pc else [])
    assert victim.end()["code"] in (716, 719)
    assert sentinel.process.wait(20) == 1


def test_one_process_holds_each_client(mps: Machine, sentinel: Sentinel) -> None:
    victim, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    assert sentinel.comes(CONTAINED)
    assert hold(sentinel, 2)
    assert len(children(sentinel.process.pid)) == 1 + 2  # the stopped client, and one for each that is held
    culprit.kill()
    assert lives_on(victim)


@pytest.mark.usefixtures("stuck_sm")
def test_an_exception_that_does_not_end_ends_all_soon(mps: Machine, sentinel: Sentinel) -> None:
    """The whole GPU would stand still until Xid 109, 4.5 s later (once of 67, H200)."""
    victim, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    failed = sentinel.comes(FAILED)
    assert failed
    assert (failed.count, len(sentinel.of(CONTAINED)), [each.count for each in sentinel.of(FAULT)]) == (AT_SECOND, 1, [1, 41])
    assert victim.end()["code"] == 719


def test_a_stall_is_as_long_as_the_sequence(mps: Machine, sentinel: Sentinel) -> None:
    """Between the event and CONTAINED no work of a co-runner ends; this order holds on a busy machine too."""
    victim, culprit = two_clients(mps, sentinel, "trap")
    culprit.open_gate()
    contained = sentinel.comes(CONTAINED)
    assert contained
    (fault,) = sentinel.of(FAULT)
    assert contained.time_ns - fault.time_ns >= 10_000_000
    assert victim.released()["worst_ms"] >= 10
    assert time.monotonic_ns() > contained.time_ns
