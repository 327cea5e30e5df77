"""Limits set through the command language hold in the clients: SMs that a kernel runs on, bytes that can be allocated."""

import pytest

from tests.integration.machine import Machine
from tests.integration.process import wait_for

pytestmark = pytest.mark.root
SMS = 132
OUT_OF_MEMORY = 2


def sms(machine: Machine, uid: int | None = None) -> int:
    """How many SMs a kernel of a new client runs on."""
    return int(machine.client("smcount", uid=uid).wait("sms")["seen"])


def fits(machine: Machine, mib: int, *words: str) -> bool:
    """Whether a new client can allocate that much."""
    client = machine.client("memlimit", str(mib), *words)
    if client.status() == 0:
        return bool(client.wait("allocated"))
    assert client.error() == OUT_OF_MEMORY
    return False


@pytest.mark.parametrize(("percent", "seen"), [("25", 32), ("0.1", 8)])
def test_a_default_share_set_before_the_first_client_holds_in_it(machine: Machine, percent: str, seen: int) -> None:
    """The figures are those of an H200."""
    machine.start()
    assert machine.tell(f"set_default_active_thread_percentage {percent}") == f"{float(percent):.1f}\n"
    assert sms(machine) == seen


@pytest.mark.parametrize("by", ["ordinal", "UUID", pytest.param("prefix", marks=pytest.mark.slow)])
def test_a_default_memory_limit_holds_however_the_device_was_named(machine: Machine, by: str) -> None:
    machine.start()
    uuid = machine.uuids()[0]
    name = {"ordinal": "0", "UUID": uuid, "prefix": uuid[:12]}[by]
    assert machine.tell(f"set_default_device_pinned_mem_limit {name} 1G") == ""
    assert machine.tell("get_default_device_pinned_mem_limit 0") == "1G\n"
    assert not fits(machine, 2048)
    assert not fits(machine, 2048, "--vmm")
    assert fits(machine, 256)


def test_a_refused_limit_is_said_and_changes_nothing(machine: Machine) -> None:
    """Taken for set, it would let clients run without one."""
    machine.start()
    machine.tell("set_default_device_pinned_mem_limit 0 1G")
    for bad in ("0 1T", "0 abc", "7 2G", "GPU-none 2G", "0"):
        done = machine.ask(f"set_default_device_pinned_mem_limit {bad}")
        assert done.returncode == 1
        assert done.stdout.startswith("Memory limit not set: ")
    assert machine.tell("get_default_device_pinned_mem_limit 0") == "1G\n"
    assert not fits(machine, 2048)


@pytest.mark.slow
def test_a_default_set_later_leaves_the_running_server_alone_and_reaches_the_spare(machine: Machine) -> None:
    """The vendor's rule: it applies to the next server. The spare's server has no user yet, so mpsd replaces it."""
    machine.start()
    first = machine.counter().ready()
    spare = machine.with_spare()
    machine.tell("set_default_active_thread_percentage 50")
    machine.tell("set_default_device_pinned_mem_limit 0 1G")
    assert sms(machine) == SMS
    assert fits(machine, 2048)
    machine.client("faulter", "trap", "--linger", "60").wait("result")
    assert first.error()
    assert sms(machine) == SMS // 2
    newcomer = machine.client("hold").ready()
    assert machine.domain_of(newcomer) == spare
    assert not fits(machine, 2048)


def test_a_servers_own_limits_hold_for_clients_to_come(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    server = machine.server()
    assert machine.tell(f"set_active_thread_percentage {server} 25") == "25.0\n"
    assert machine.tell(f"set_device_pinned_mem_limit {server} 0 1G") == ""
    assert sms(machine) == 32
    assert not fits(machine, 2048)
    assert machine.tell(f"get_active_thread_percentage {server}") == "25.0\n"


def test_a_clients_own_wish_can_only_lower(machine: Machine) -> None:
    machine.start()
    machine.tell("set_default_active_thread_percentage 50")
    low = machine.client("smcount", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10").wait("sms")
    high = machine.client("smcount", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90").wait("sms")
    assert (low["seen"], high["seen"]) == (12, 66)


def test_limits_of_the_configuration_hold_from_the_first_client_on(machine: Machine) -> None:
    text = '[limits]\ndefault_active_thread_percentage = 25.0\n[limits.default_device_pinned_mem_limit]\n"0" = "1G"\n'
    machine.configure(text)
    machine.start()
    assert sms(machine) == 32
    assert not fits(machine, 2048)


def test_limits_reach_a_domain_that_was_started_again(machine: Machine) -> None:
    """A vendor daemon forgets them when it dies."""
    machine.configure("[domains]\nspares = 0\nmax_domains = 1\nrestart_seconds = 0.05\n")
    machine.start()
    machine.tell("set_default_active_thread_percentage 25")
    killed = machine.kill_vendor("default")
    wait_for("another vendor daemon", lambda: machine.vendor_pid("default") not in (0, killed))
    assert sms(machine) == 32
