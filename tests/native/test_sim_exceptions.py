"""SM exceptions on the simulator while a client of the server is stopped, and a debugger that resumes the GPU."""

import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import CONTROL, SILENT_SECONDS, Client, Machine, eventually, open_machine
from tests.native.sim_space import Space, duplicate

RESUMES_AT, SMS_AT, RESUMED_NS_AT, PC_AT = 16, 20, 24, 32


def stopped_client(mps: Machine) -> Client:
    client = mps.client("hold")
    client.wait_for("ready")
    os.kill(client.pid, signal.SIGSTOP)
    return client


class Debugger:
    """The page of a stopped client, as native/sim/include/rm_page.h lays it out."""

    def __init__(self, client: Client) -> None:
        descriptor = duplicate(client.pid, ".control")
        self.page = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)

    def sms(self) -> int:
        """Return how many SMs show an error."""
        sms: int = struct.unpack_from("<I", self.page, SMS_AT)[0]
        return sms

    def has_error(self) -> bool:
        return self.sms() > 0

    def pc(self) -> int:
        pc: int = struct.unpack_from("<Q", self.page, PC_AT)[0]
        return pc

    def resume(self) -> None:
        (resumes,) = struct.unpack_from("<I", self.page, RESUMES_AT)
        struct.pack_into("<Q", self.page, RESUMED_NS_AT, time.monotonic_ns())
        struct.pack_into("<I", self.page, RESUMES_AT, resumes + 1)


@pytest.fixture
def slow_mps() -> Iterator[Machine]:
    """With the device's own times: a culprit learns of its trap after 11 ms."""
    with open_machine(MPSD_SIM_FAST="0") as made:
        made.start()
        yield made


@pytest.fixture
def stuck_mps() -> Iterator[Machine]:
    """No RESUME ends an exception."""
    with open_machine(MPSD_SIM_SM_STUCK="1") as made:
        made.start()
        yield made


def victim_of(mps: Machine, seconds: str = "60") -> Client:
    victim = mps.client("counter", "--seconds", seconds, "--ms", "20")
    victim.wait_for("ready")
    return victim


@pytest.mark.parametrize(("mode", "code"), [("trap", 719), ("misaligned", 716)])
def test_a_stopped_customer_delays_the_end_of_the_others_until_it_goes_on(mps: Machine, mode: str, code: int) -> None:
    victim, stopped = victim_of(mps), stopped_client(mps)
    culprit = mps.client("faulter", mode, "--linger", "60")
    assert culprit.wait_for("result")["code"] == (719 if mode == "trap" else 0)
    assert victim.falls_silent()
    assert mps.xids() == []
    os.kill(stopped.pid, signal.SIGCONT)
    assert victim.end()["code"] == code
    assert len(mps.xids()) == (1 if mode == "trap" else 3)


def test_the_death_of_the_stopped_client_has_the_same_effect(mps: Machine) -> None:
    victim, stopped = victim_of(mps), stopped_client(mps)
    mps.client("faulter", "trap", "--linger", "60").wait_for("result")
    assert victim.falls_silent()
    stopped.kill()
    assert victim.end()["code"] == 719


def test_the_server_answers_nobody_meanwhile(mps: Machine) -> None:
    victim, stopped = victim_of(mps), stopped_client(mps)
    server = mps.server()
    mps.client("faulter", "trap", "--linger", "0").end()
    assert victim.falls_silent()
    asker = subprocess.Popen([CONTROL], env=mps.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    mps.started.append(asker)
    assert asker.stdin
    asker.stdin.write(f"get_server_status {server}\n")
    asker.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        asker.wait(SILENT_SECONDS)
    os.kill(stopped.pid, signal.SIGCONT)
    assert victim.end()["code"] == 719


@pytest.mark.parametrize("mode", ["oob_write", "copy"])
def test_a_memory_fault_ends_all_as_ever(mps: Machine, mode: str) -> None:
    victim = victim_of(mps)
    stopped_client(mps)
    mps.client("faulter", mode, "--linger", "60").wait_for("result")
    assert victim.end()["code"] == 700


@pytest.mark.slow
def test_the_error_is_still_shown_when_the_others_go_on(mps: Machine) -> None:
    """Measured on an H200: all clients go on after one RESUME."""
    victim, stopped = victim_of(mps), stopped_client(mps)
    debugger = Debugger(stopped)
    mps.client("faulter", "misaligned", "--linger", "60").wait_for("result")
    eventually(debugger.has_error)
    debugger.resume()
    assert not victim.falls_silent()
    assert debugger.has_error()


@pytest.mark.slow
def test_after_a_second_exception_one_of_the_others_hangs(mps: Machine) -> None:
    """Measured on H200s: always that with long kernels."""
    victim, stopped = victim_of(mps), stopped_client(mps)
    debugger = Debugger(stopped)
    second = mps.client("faulter", "trap", "--gate", "--linger", "60")
    second.wait_for("ready")
    mps.client("faulter", "misaligned", "--linger", "60").wait_for("result")
    eventually(debugger.has_error)
    debugger.resume()
    assert not victim.falls_silent()
    second.open_gate()
    assert second.wait_for("result")["code"] == 719
    debugger.resume()
    assert victim.falls_silent()


@pytest.mark.slow
def test_an_exception_that_does_not_end_is_reported_by_more_sms(stuck_mps: Machine) -> None:
    victim, stopped = victim_of(stuck_mps), stopped_client(stuck_mps)
    debugger = Debugger(stopped)
    stuck_mps.client("faulter", "trap", "--linger", "60").wait_for("result")
    eventually(debugger.has_error)
    debugger.resume()
    eventually(lambda: debugger.sms() > 1)
    assert victim.falls_silent()
    stopped.kill()
    assert victim.end()["code"] == 719


def test_the_others_go_on_and_lose_nothing(mps: Machine) -> None:
    victim, stopped = victim_of(mps, "1.5"), stopped_client(mps)
    debugger = Debugger(stopped)
    culprit = mps.client("faulter", "misaligned", "--linger", "60")
    culprit.wait_for("result")
    eventually(debugger.has_error)
    lines = Path(f"/proc/{culprit.pid}/maps").read_text().splitlines()
    maps = [line.split()[0].split("-") for line in lines]
    assert any(int(low, 16) <= debugger.pc() < int(high, 16) for low, high in maps)
    debugger.resume()
    culprit.kill()
    last = victim.end()
    assert (last["event"], last["count"]) == ("end", last["kernels"])


@pytest.mark.slow
@pytest.mark.parametrize("is_held", [False, True])
def test_a_resume_before_the_culprit_knows_is_too_early(slow_mps: Machine, is_held: bool) -> None:
    """Killed afterwards, it takes the others along, unless its address space is held."""
    victim, stopped = victim_of(slow_mps), stopped_client(slow_mps)
    debugger = Debugger(stopped)
    culprit = slow_mps.client("faulter", "stack_overflow", "--linger", "60")  # a culprit that never knows
    culprit.wait_for("fault")
    eventually(debugger.has_error)
    space = Space(culprit)
    debugger.resume()
    assert not victim.falls_silent()
    if not is_held:
        space.close()
    culprit.kill()
    assert victim.falls_silent() is not is_held
    space.close()
