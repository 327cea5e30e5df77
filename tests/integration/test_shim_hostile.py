"""Programs under the shim when mpsd dies, hangs, or belongs to another user: they end as without it, at most a little later."""

import random
import signal
import time

import pytest

from tests.integration.machine import CLIENTS, Machine, open_machine
from tests.integration.process import wait_for
from tests.integration.test_shim import addresses, counter, memory, shim, told
from tests.seeds import seeds

ARENA = {"MPSD_ARENA": "kept", "MPSD_ARENA_ADOPT": "1", "MPSD_ARENA_CAPACITY": "64M"}
OWN_LIMITS = [("0=1G", False), ("0=64G", False), ("", False), ("much", False), ("1=1G,0=3G", True)]
PATIENCE_SECONDS = 20.0  # of a guest, all in all: some answers of 5 s, and the time that the machine takes


@pytest.mark.slow
def test_without_root_a_lease_is_applied_by_the_environment(shared_strangers: Machine) -> None:
    """CUDA goes straight to a vendor's daemon there, which knows of no lease."""
    client = counter(shared_strangers, MPSD_LEASE_SM_PERCENT="25", MPSD_LEASE_MEMORY="8G", MPSD_REQUIRED="1").ready()
    assert client.wait("ready")["sms"] == 32
    assert "domains/default/pipe" in told(shared_strangers, client)
    client.end()


@pytest.mark.slow
@pytest.mark.parametrize(("own", "sms"), [("10", 12), ("80", 32), ("much", 32), ("0", 32), ("-1", 32)])
def test_the_programs_own_share_stays_only_if_it_is_a_lower_one(shared_strangers: Machine, own: str, sms: int) -> None:
    client = counter(shared_strangers, MPSD_LEASE_SM_PERCENT="25", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=own).ready()
    assert client.wait("ready")["sms"] == sms
    client.end()


@pytest.mark.slow
@pytest.mark.parametrize(("own", "allocates"), OWN_LIMITS)
def test_the_programs_own_memory_limit_stays_only_if_it_is_a_lower_one(
    shared_strangers: Machine, own: str, allocates: bool
) -> None:
    """The lease allows 4 GiB; the program allocates 5, and 2 where its own limit is to leave so much."""
    variables = shim(shared_strangers, MPSD_LEASE_MEMORY="4G", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=own)
    client = shared_strangers.client("memlimit", "2000" if allocates or own == "0=1G" else "5000", **variables)
    assert client.status() == (0 if allocates else 5)
    assert [each["code"] for each in client.events("error")] == ([] if allocates else [2])


@pytest.mark.slow
def test_a_program_that_it_starts_finds_mpsd_again(shared_strangers: Machine) -> None:
    """Its own environment leads to a domain by then; the child's shim asks mpsd all the same."""
    ours = shim(shared_strangers, MPSD_LEASE_SM_PERCENT="25", MPSD_REQUIRED="1")
    done = shared_strangers.run("fork_exec", program=CLIENTS / "shim_life", **ours)
    assert (done.returncode, done.stdout) == (0, "PASS\nPASS\n")


@pytest.mark.slow
@pytest.mark.parametrize(("required", "status"), [("", 0), ("1", 3)])
def test_a_stopped_mpsd_holds_up_cuinit_for_a_while(strangers: Machine, required: str, status: int) -> None:
    strangers.start()
    strangers.signal_daemon("SIGSTOP")
    began = time.monotonic()
    client = counter(strangers, "--seconds", "0.05", MPSD_LEASE_SM_PERCENT="25", MPSD_REQUIRED=required)
    assert client.status(PATIENCE_SECONDS) == status
    assert 4 < time.monotonic() - began < PATIENCE_SECONDS
    strangers.signal_daemon("SIGCONT")


@pytest.mark.slow
def test_a_stopped_mpsd_holds_up_an_arena_once(programs: None) -> None:
    """Then the driver allocates, placed memory stays usable, and the log has the reason."""
    with open_machine() as machine:
        machine.start()
        client = machine.client("shim_arena", "--rounds", "300", "4", "8", "4", **shim(machine, **ARENA)).ready()
        wait_for("the arena", lambda: "generation 1" in told(machine, client))
        machine.signal_daemon("SIGSTOP")
        assert client.status(PATIENCE_SECONDS) == 0
        machine.signal_daemon("SIGCONT")
        assert "did not answer in time" in told(machine, client)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_mpsd_may_be_killed_between_any_two_calls(programs: None, seed: int) -> None:
    """And come back or not: the program ends well, and what it committed last is there."""
    chance = random.Random(seed)
    with open_machine() as machine:
        machine.start()
        words = ("--rounds", "150", "--write", "100", "4", "8", "4")
        client = machine.client("shim_arena", *words, **shim(machine, **ARENA)).ready()
        for _ in range(2):
            time.sleep(chance.random() * 0.3)
            machine.kill_daemon()
            if chance.random() < 0.8:
                machine.start()
            else:
                break
        assert client.status(PATIENCE_SECONDS) == 0, client.events("error")
        before = client.events("memory")
        if not machine.daemon_pid() or not _runs(machine):
            machine.start()
        after = memory(machine, "4", "8", "4", **ARENA)
        for old, new in zip(before, after, strict=True):
            assert new["first"] in (0, 100 + new["number"])
            assert new["first"] == 0 or new["address"] == old["address"]
        assert len(set(addresses(after))) == 3


def _runs(machine: Machine) -> bool:
    return machine.daemon_pid() in machine.processes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_program_may_be_killed_between_any_two_calls(programs: None, seed: int) -> None:
    """An adopter has all allocations of a size in order, or none; never other contents."""
    chance = random.Random(seed)
    with open_machine() as machine:
        machine.start()
        for _ in range(4):
            client = machine.client("shim_arena", "--rounds", "40", "--write", "100", "4", "8", "4", **shim(machine, **ARENA))
            time.sleep(chance.random() * 0.4)
            client.process.send_signal(signal.SIGKILL)
            client.status()
            found = memory(machine, "4", "8", "4", **ARENA)
            assert all(each["first"] in (0, 100 + each["number"]) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *seeds(0, 2)])
def test_guards_in_an_arena_keep_out_of_the_way_of_memory(programs: None, seed: int) -> None:
    """Where mpsd's client chooses the places, and what was freed comes back only after a commit."""
    with open_machine() as machine:
        machine.start()
        ours = shim(machine, MPSD_SHIELD="absorb", MPSD_ARENA="churned", MPSD_ARENA_CAPACITY="512M")
        done = machine.run("churn", str(seed), program=CLIENTS / "shim_life", **ours)
        assert (done.returncode, done.stdout) == (0, "PASS\n")
        log = (machine.place / "shim.log").read_text()
        assert "shield" not in log
        assert "lifted" not in log
