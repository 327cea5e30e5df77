"""The state directory is removed: under a running mpsd, and while none runs."""

import shutil

from mpsd_client import Selector, calls

from tests.integration.client import Client
from tests.integration.machine import PROGRAM, Machine
from tests.integration.process import program_of, wait_for

SERVER = "nvidia-cuda-mps-server"
READY_SECONDS = 20.0
COPY_SECONDS = 10.0  # mpsd copies once a second what has changed


def remove(machine: Machine, *, only_contents: bool = False) -> None:
    """Remove the directory, and wait until mpsd has made it again."""
    made = len(machine.journal("state_directory.made_again"))
    for path in machine.state.iterdir() if only_contents else [machine.state]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    wait_for("the directory", lambda: len(machine.journal("state_directory.made_again")) > made)


def restart(machine: Machine) -> None:
    machine.kill_daemon()
    machine.start()


def outlived(machine: Machine) -> set[int]:
    return {event["vendor_pid"] for event in machine.journal("domain.outlived")}


def check_nothing_is_left(machine: Machine) -> None:
    assert machine.quit() == 0
    wait_for("the end of everything", lambda: not [pid for pid in machine.processes() if program_of(pid) != "counter"])


def two_clients(machine: Machine) -> list[Client]:
    clients = [machine.counter(uid=uid).ready() for uid in (1000, 1001)]
    wait_for("two domains", lambda: {machine.domain_of(client) for client in clients} == {"default", "d2"})
    return clients


def test_health_tells_newcomers_are_served_and_a_restart_loses_nothing(machine: Machine) -> None:
    """A restart lost leases, and the vendor daemons of before ran for ever."""
    machine.start()
    clients = two_clients(machine)
    daemons = {machine.vendor_pid(name) for name in ("default", "d2")}
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("before", Selector.of_uid(1002), sm_percent=10))
        remove(machine)
        assert any("under the running mpsd" in problem for problem in mpsd.ask(calls.health()).problems)
        mpsd.ask(calls.lease_create("after", Selector.of_uid(1003), sm_percent=10))
    newcomers = [machine.counter(uid=uid).ready(READY_SECONDS) for uid in (1000, 1002)]
    changed = (machine.state / "leases.db").stat().st_mtime_ns
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("last", Selector.of_uid(1004), sm_percent=10))
    wait_for("a copy", lambda: (machine.state / "leases.db").stat().st_mtime_ns > changed, COPY_SECONDS)
    restart(machine)
    assert outlived(machine) == daemons
    for client in (*clients, *newcomers):
        client.goes_on()
    machine.counter(uid=1001).ready(READY_SECONDS)
    with machine.mpsd() as mpsd:
        assert {lease.name for lease in mpsd.pages(calls.lease_list())} == {"before", "after", "last"}
        wait_for("health", lambda: not mpsd.ask(calls.health()).problems)
    clients[0].end()
    wait_for("the end of one", lambda: len(daemons & set(machine.processes(PROGRAM))) == 1)
    clients[1].goes_on()
    clients[1].end()
    wait_for("the end of both", lambda: not daemons & set(machine.processes(PROGRAM)))
    for newcomer in newcomers:
        newcomer.goes_on()
    check_nothing_is_left(machine)


def test_its_clients_count_in_no_domain_of_the_same_name(machine: Machine) -> None:
    """After the second restart one did: newcomers of its user were placed with a server of another user, and hung."""
    machine.configure("[domains]\nspares = 0\n")
    machine.start()
    client = machine.counter(uid=1000).ready()
    remove(machine, only_contents=True)
    before = (machine.state / "mpsd.db").stat().st_mtime_ns
    machine.counter(uid=1002).ready(READY_SECONDS).end()
    wait_for("a copy", lambda: (machine.state / "mpsd.db").stat().st_mtime_ns > before, COPY_SECONDS)
    restart(machine)
    machine.counter(uid=1001).ready(READY_SECONDS)
    restart(machine)
    machine.counter(uid=1000).ready(READY_SECONDS)
    client.goes_on()


def test_a_client_that_waits_is_served_after_a_restart(machine: Machine) -> None:
    """The keeper could not be reached, so that it waited for ever."""
    machine.configure("[domains]\nmax_domains = 1\nspares = 0\n")
    machine.start()
    first = machine.counter(uid=1000).ready()
    waiting = machine.counter(uid=1001)
    with machine.mpsd() as mpsd:
        wait_for("it to wait", lambda: mpsd.ask(calls.status()).queue == 1)
    remove(machine)
    wait_for("another keeper", lambda: machine.journal("keeper.replaced") and machine.keeper_pid())
    restart(machine)
    waiting.ready(READY_SECONDS)
    first.goes_on()
    first.end()
    check_nothing_is_left(machine)


def test_a_directory_that_is_removed_twice(machine: Machine) -> None:
    machine.start()
    first = machine.counter(uid=1000).ready()
    daemons = {machine.vendor_pid(machine.domain_of(first))}
    remove(machine)
    second = machine.counter(uid=1000).ready(READY_SECONDS)
    daemons.add(machine.vendor_pid(machine.domain_of(second)))
    remove(machine, only_contents=True)
    restart(machine)
    assert len(daemons) == 2
    assert daemons <= outlived(machine), "the others are spares, as many as had been started by then"
    for client in (first, second):
        client.goes_on()
        client.end()
    machine.counter(uid=1000).ready(READY_SECONDS)
    wait_for("one daemon a domain", lambda: len(machine.processes(SERVER)) <= len(machine.domains()))
    check_nothing_is_left(machine)


def test_a_directory_that_is_removed_while_no_mpsd_runs(machine: Machine) -> None:
    """mpsd cannot know who the clients are: they continue, and `quit` leaves nothing."""
    machine.start()
    clients = two_clients(machine)
    machine.kill_daemon()
    shutil.rmtree(machine.state)
    machine.start()
    assert len(outlived(machine)) >= len(clients)
    for client in clients:
        client.goes_on()
    machine.counter(uid=1000).ready(READY_SECONDS)
    with machine.mpsd() as mpsd:
        wait_for("health", lambda: not mpsd.ask(calls.health()).problems)
    for client in clients:
        client.goes_on()
    check_nothing_is_left(machine)


def test_mpsd_says_why_it_cannot_make_the_directory_again(machine: Machine) -> None:
    machine.start()
    client = machine.counter(uid=1000).ready()
    shutil.rmtree(machine.state)
    machine.state.touch()
    assert "it is not a directory" in machine.wait_for_journal("state_directory.not_made")["why"]
    with machine.mpsd() as mpsd:
        removed = "under the running mpsd"
        wait_for("health to report it", lambda: any(removed in problem for problem in mpsd.ask(calls.health()).problems))
    client.goes_on()
    machine.state.unlink()
    machine.wait_for_journal("state_directory.made_again")
    machine.counter(uid=1000).ready(READY_SECONDS)
