"""Fault domains: a fault, a full server, another user, a vendor daemon that dies, hangs or crashes."""

import os
import signal
from contextlib import suppress

import pytest

from tests.integration.machine import UIDS, Machine
from tests.integration.process import is_running, wait_for

pytestmark = pytest.mark.root
QUICK = "[domains]\nrestart_seconds = 0.1\n"
ALONE = "[domains]\nspares = 0\nmax_domains = 1\nrestart_seconds = 0.5\n"


def test_a_fault_ends_its_domain_alone_and_a_new_client_is_admitted_at_once(machine: Machine) -> None:
    machine.start()
    victim = machine.counter().ready()
    spare = machine.with_spare()
    faulter = machine.client("faulter", "trap", "--linger", "60")
    assert faulter.wait("result")["code"] == 719
    assert victim.error() == 719
    newcomer = machine.counter().ready(seconds=1.0)
    assert not faulter.has_ended()
    assert machine.domain_of(newcomer) == spare
    newcomer.goes_on()


@pytest.mark.parametrize("fault", ["oob_write", pytest.param("misaligned", marks=pytest.mark.slow), "illegal_instruction"])
def test_clients_in_another_domain_do_not_notice_a_fault(machine: Machine, fault: str) -> None:
    """Start a client of another user, in another domain."""
    machine.start()
    first, other = machine.counter().ready(), machine.counter(uid=UIDS[0]).ready()
    machine.client("faulter", fault).status()
    assert first.error() in (700, 715, 716)
    other.goes_on()


@pytest.mark.slow
def test_a_domain_is_recycled_once_its_clients_have_gone_and_serves_again(machine: Machine) -> None:
    machine.configure('[faults]\nquarantine = "off"\n')  # else who faulted before is placed apart
    machine.start()
    victim = machine.counter().ready()
    machine.with_spare()
    faulty = machine.server_of(victim)
    machine.client("faulter", "trap").status()
    assert victim.status() == 5
    assert machine.wait_for_journal("domain.recycling")["domain"] == "default"
    wait_for("the faulty server's end", lambda: not is_running(faulty))
    newcomer = machine.counter().ready()
    wait_for("the old domain to be a spare again", lambda: "default" in machine.spares())
    machine.client("faulter", "trap").status()
    assert newcomer.status() == 5
    assert machine.domain_of(machine.counter().ready()) in ("default", "d2")


@pytest.mark.slow
def test_64_clients_at_once_all_run(machine: Machine) -> None:
    """The vendor's server takes 48 and refuses the others with 808."""
    machine.start()
    clients = [machine.client("hold") for _ in range(64)]
    for client in clients:
        client.ready(seconds=20.0)
    wait_for("all in the lists", lambda: machine.clients() == {client.pid for client in clients})
    counts = sorted(len(machine.numbers(f"get_client_list {server}")) for server in machine.servers())
    assert sum(counts) == 64
    assert counts[-1] <= 48


@pytest.mark.slow
def test_100_clients_one_after_the_other_fill_domain_after_domain(machine: Machine) -> None:
    """On a busy machine mpsd passes over a domain whose vendor daemon is silent for a moment, and fills it later."""
    machine.start()
    clients = {machine.client("hold").ready().pid for _ in range(100)}
    wait_for("all in the lists, of which mpsd learns from a log", lambda: machine.clients() == clients)
    counts = sorted(len(machine.numbers(f"get_client_list {server}")) for server in machine.servers())
    assert counts == [4, 48, 48]


def test_a_client_with_many_contexts_fills_its_server_and_the_next_client_goes_elsewhere(machine: Machine) -> None:
    machine.start()
    many = machine.client("contexts", "48", "--linger", "60")
    wait_for("48 contexts", lambda: len(many.events("context")) == 48)
    wait_for("mpsd to know of them", lambda: sum("is ACTIVE" in line for line in machine.log("server.log")) == 48)
    newcomer = machine.counter().ready()
    assert machine.server_of(newcomer) != machine.server_of(many)


def test_another_user_is_served_while_the_first_users_clients_run(machine: Machine) -> None:
    """With the vendor's daemon the second waits until the first has ended."""
    machine.start()
    mine = machine.counter().ready()
    theirs = machine.counter(uid=UIDS[0]).ready(seconds=3.0)
    others = machine.counter(uid=UIDS[1]).ready(seconds=3.0)
    owners = {os.stat(f"/proc/{machine.server_of(client)}").st_uid for client in (mine, theirs, others)}
    assert owners == {0, *UIDS}
    mine.goes_on()


def test_with_multiuser_server_all_users_share_one(machine: Machine) -> None:
    machine.start("-multiuser-server")
    mine, theirs = machine.counter().ready(), machine.counter(uid=UIDS[0]).ready()
    assert machine.server_of(mine) == machine.server_of(theirs)


# -- vendor daemons that fail ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_vendor_daemon_that_is_killed_is_started_again(machine: Machine) -> None:
    """Its clients lose their GPU work, as with the vendor's daemon; the next client goes to the spare."""
    machine.configure(QUICK)
    machine.start()
    client = machine.counter().ready()
    machine.with_spare()
    killed = machine.kill_vendor("default")
    assert client.status() == 5
    machine.counter().ready(seconds=1.0)
    again = wait_for("another vendor daemon", lambda: machine.vendor_pid("default"))
    assert again != killed
    assert machine.wait_for_journal("domain.restarting")["in_seconds"] == 0.1


@pytest.mark.slow
def test_a_newcomer_does_not_go_where_a_server_has_just_died(machine: Machine) -> None:
    """The vendor daemon would give it 805 until it has noticed; stopped, this one never does."""
    machine.start()
    client = machine.counter().ready()
    spare, vendor = machine.with_spare(), machine.vendor_pid("default")
    os.kill(vendor, signal.SIGSTOP)
    try:
        os.kill(machine.server_of(client), signal.SIGKILL)
        newcomer = machine.counter().ready(seconds=1.5)
        assert machine.domain_of(newcomer) == spare
    finally:
        with suppress(ProcessLookupError):  # mpsd replaces it once its last client has ended
            os.kill(vendor, signal.SIGCONT)


def test_newcomers_are_held_while_the_only_domain_restarts_and_then_served(machine: Machine) -> None:
    """Closed instead of held, they would run without MPS."""
    machine.configure(ALONE)
    machine.start()
    machine.counter().ready()
    machine.kill_vendor("default")
    machine.wait_for_journal("domain.restarting")
    newcomers = [machine.counter() for _ in range(3)]
    machine.wait_for_journal("client.waiting")
    assert all(client.is_silent() for client in newcomers)
    for client in newcomers:
        client.ready()
        assert machine.kinds()[client.pid] == "client"


@pytest.mark.slow
def test_the_pauses_grow_while_a_vendor_daemon_keeps_crashing(machine: Machine) -> None:
    """The daemon crashes when a client comes: that client waits, and mpsd serves it after the restart."""
    machine.configure(ALONE)
    machine.misbehave("crash@attach")
    machine.start()
    client = machine.counter()
    wait_for("three restarts", lambda: len(machine.journal("domain.restarting")) >= 3)
    assert [entry["in_seconds"] for entry in machine.journal("domain.restarting")][:3] == [0.5, 1.0, 2.0]
    assert client.is_silent()
    machine.misbehave("")
    client.ready()
    assert machine.kinds()[client.pid] == "client"


def test_a_server_that_crashes_on_its_way_up_leaves_its_client_waiting_not_running_free(machine: Machine) -> None:
    machine.misbehave(server="crash")
    machine.start()
    client = machine.counter()
    wait_for("the server's end in the log", lambda: any("exited with status" in line for line in machine.log()))
    assert client.pid not in machine.kinds()
    assert client.process.poll() is None or client.events("error")


@pytest.mark.slow
def test_while_a_vendor_daemon_hangs_questions_are_answered_and_newcomers_served(machine: Machine) -> None:
    """Stopped, it answers nothing.  Its clients' work goes on: that is between them and the server."""
    machine.configure("[vendor]\ncommand_seconds = 1.0\n")
    machine.start()
    client = machine.counter().ready()
    machine.with_spare()
    os.kill(machine.vendor_pid("default"), signal.SIGSTOP)
    try:
        newcomer = machine.counter()
        assert machine.run(typed="get_default_active_thread_percentage\n", seconds=3.0).stdout == "100.0\n"
        assert machine.run(typed="get_server_list\n", seconds=3.0).returncode == 0
        client.goes_on()
        newcomer.ready(seconds=20.0)  # three times command_seconds of silence, and the command in progress
        assert machine.domain_of(newcomer) != "default"
    finally:
        os.kill(machine.vendor_pid("default"), signal.SIGCONT)
    client.goes_on()
