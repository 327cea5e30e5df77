"""The sentinel of a domain, on the simulator: before its first client, in no list, ended first, taken over by the next mpsd."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Selector, calls

from mpsd.host.processes import real_uid
from tests.integration.machine import UIDS, Machine
from tests.integration.process import is_running, state_of, wait_for

pytestmark = pytest.mark.root
UNTESTED = "[sentinel]\nself_test = false\n"  # test_sentinel_proof.py has the test
ON = f'{UNTESTED}mode = "on"\n'
REQUIRED = f'{UNTESTED}mode = "required"\nstart_seconds = 2.0\n'
NOWHERE = {"LD_LIBRARY_PATH": "/nonexistent"}  # of mpsd, so that its sentinel finds no libcuda.so.1


def started(machine: Machine, text: str = ON, **variables: str) -> Machine:
    machine.configure(text)
    machine.start(**variables)
    return machine


def sentinel(machine: Machine) -> tuple[int, int]:
    """Return the pids of the first domain's last sentinel, its watcher's and its stopped client's; a spare has one too."""
    def ready() -> list[dict[str, Any]]:
        return [each for each in machine.journal("sentinel.ready") if each["domain"] == "default"]

    [pid] = wait_for("a sentinel", ready)[-1]["pids"]
    watcher = int(next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("PPid:"))[5:])
    return watcher, pid


def problems(machine: Machine) -> tuple[str, ...]:
    with machine.mpsd() as mpsd:
        return tuple(mpsd.ask(calls.health()).problems)


def test_it_is_stopped_in_the_server_of_the_first_client_and_is_its_users(machine: Machine) -> None:
    started(machine)
    assert not machine.processes("mpsd-sentinel"), "no domain has a client"
    client = machine.counter(uid=UIDS[0]).ready()
    watcher, pid = sentinel(machine)
    assert (state_of(pid), real_uid(pid), real_uid(watcher)) == ("T", UIDS[0], 0)
    [ready] = machine.journal("sentinel.ready")
    assert ready["server"] == machine.server_of(client)
    arrivals = [line for line in machine.log("server.log") if "Context ID: 0} connected" in line]
    assert str(pid) in arrivals[0], "the sentinel had its context before any client came"


def test_in_a_server_of_all_users_no_user_can_end_it(machine: Machine) -> None:
    """Where one is required, all other users' clients waited 30 s each time that its user had ended it while it started."""
    machine.configure(REQUIRED)
    machine.start("-multiuser-server")
    client = machine.counter(uid=UIDS[0]).ready()
    _, pid = sentinel(machine)
    assert (real_uid(pid), real_uid(machine.server_of(client))) == (0, 0)
    machine.counter(uid=UIDS[1]).ready()


def test_a_reload_gives_its_place_to_no_client(machine: Machine) -> None:
    """After SIGHUP each domain took a client more than its server has places: that client got an error."""
    started(machine)
    with machine.mpsd() as mpsd:
        before = [(each.name, each.capacity) for each in mpsd.ask(calls.domain_list()).items]
        machine.signal_daemon("SIGHUP")
        machine.wait_for_journal("reload.done")
        assert [(each.name, each.capacity) for each in mpsd.ask(calls.domain_list()).items] == before


def test_a_spare_has_one_before_any_client(machine: Machine) -> None:
    """The first client of that domain then does not wait for it."""
    started(machine)
    machine.counter().ready()
    wait_for("the spare's", lambda: len(machine.journal("sentinel.ready")) == 2)
    of_client, of_spare = machine.journal("sentinel.ready")
    assert of_client["domain"] != of_spare["domain"]
    with machine.mpsd() as mpsd:
        [spare] = [each for each in mpsd.ask(calls.domain_list()).items if each.is_spare]
    assert (spare.name, spare.clients) == (of_spare["domain"], 0)


def test_it_counts_nowhere(machine: Machine) -> None:
    started(machine, f'{ON}[metrics]\nlisten = "unix:{machine.place}/metrics"\n')
    client = machine.counter().ready()
    _, pid = sentinel(machine)
    wait_for("the client in the list", lambda: machine.clients() == {client.pid})
    server = machine.server()
    for line in ("ps", f"ps -p {server}", f"get_device_client_list {server}"):
        rows = [row.split()[0].partition(".")[0] for row in machine.tell(line).splitlines()]
        assert str(client.pid) in rows, line
        assert str(pid) not in rows, line
    with machine.mpsd() as mpsd:
        assert [each.pid for each in mpsd.ask(calls.client_list()).items] == [client.pid]
        [domain] = [each for each in mpsd.ask(calls.domain_list()).items if not each.is_spare]
        assert (domain.clients, domain.capacity, [each.clients for each in domain.servers]) == (1, 47, [1])
        assert mpsd.ask(calls.status()).clients == 1
    assert not machine.journal("client.stranger")
    assert not [each for each in problems(machine) if "sentinel" in each]


def test_the_last_client_is_the_last_although_it_stays(machine: Machine) -> None:
    """The domain counts as empty, so that `quit` without a limit does not wait for the sentinel."""
    started(machine)
    machine.counter().ready().end()
    _, pid = sentinel(machine)
    assert machine.ask("quit").returncode == 0
    assert not is_running(pid)
    assert not machine.processes()


def test_an_empty_domain_goes_to_another_user_with_a_sentinel_of_theirs(machine: Machine) -> None:
    started(machine, f"{ON}[domains]\nspares = 0\nmax_domains = 1\n")
    machine.counter(uid=UIDS[0]).ready().end()
    _, first = sentinel(machine)
    second = machine.counter(uid=UIDS[1]).ready()
    wait_for("the second sentinel", lambda: len(machine.journal("sentinel.ready")) == 2)
    _, pid = sentinel(machine)
    assert not is_running(first)
    assert real_uid(pid) == UIDS[1]
    second.goes_on()


def test_clients_with_limits_get_theirs_beside_it(machine: Machine) -> None:
    """It has its context while the server's own limits are in force."""
    started(machine)
    token = "t" * 32
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("some", Selector.of_token(token), sm_percent=25))
    client = machine.counter(MPSD_LEASE=token).ready()
    sentinel(machine)
    with machine.mpsd() as mpsd:
        [row] = mpsd.ask(calls.client_list()).items
    assert (row.pid, row.sm_count) == (client.pid, 32)
    other = machine.counter().ready()
    other.goes_on()


def test_each_gpu_of_a_domain_has_one(machine: Machine) -> None:
    started(machine, f'{ON}[domains]\nper_gpu = "never"\n', MPSD_SIM_GPUS="2")
    machine.counter(MPSD_SIM_GPUS="2").ready()
    [ready] = machine.journal("sentinel.ready")
    assert len(ready["pids"]) == 2
    with machine.mpsd() as mpsd:
        [domain] = [each for each in mpsd.ask(calls.domain_list()).items if not each.is_spare]
    assert (domain.clients, domain.capacity) == (1, 46)


def test_where_it_does_not_get_ready_clients_start_and_health_reports_it(machine: Machine) -> None:
    started(machine, **NOWHERE)
    machine.counter().ready()
    failed = lambda: [each for each in machine.journal("sentinel.not_ready") if each["domain"] == "default"]  # noqa: E731
    assert "no usable libcuda.so.1" in failed()[0]["why"]
    assert any("has no sentinel" in each for each in problems(machine))
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.health()).ok, "its user can end it, and keeps no other user out"
    machine.counter().ready()
    assert len(failed()) == 1, "not tried again for each client; a spare's sentinel fails for itself"


def test_where_it_is_required_clients_wait(machine: Machine) -> None:
    started(machine, REQUIRED, **NOWHERE)
    client = machine.counter()
    machine.wait_for_journal("limits.not_set")
    assert not client.events("ready")


def test_terminate_client_ends_it_first_and_the_others_get_another(machine: Machine) -> None:
    started(machine)
    one, other = machine.counter().ready(), machine.counter().ready()
    _, pid = sentinel(machine)
    server = machine.server_of(one)
    assert machine.tell(f"terminate_client {server} {one.pid}") == "0\n"
    assert one.error() == 810
    other.goes_on()
    wait_for("another sentinel", lambda: len(machine.journal("sentinel.ready")) == 2)
    assert not is_running(pid)
    assert state_of(sentinel(machine)[1]) == "T"


def test_the_next_mpsd_takes_it_over(machine: Machine) -> None:
    started(machine)
    client = machine.counter().ready()
    before = sentinel(machine)
    machine.kill_daemon()
    machine.start()
    assert machine.wait_for_journal("sentinel.adopted")["pids"] == [before[1]]
    wait_for("the client in the list", lambda: machine.clients() == {client.pid})
    machine.counter().ready()
    ready = [each["domain"] for each in machine.journal("sentinel.ready")]
    assert len(ready) == len(set(ready)), "a spare may have one, too"
    assert is_running(before[0])
    assert machine.ask("quit -t 0").returncode == 0
    assert not machine.processes()


def test_a_next_mpsd_without_sentinels_ends_it(machine: Machine) -> None:
    started(machine)
    client = machine.counter().ready()
    watcher, pid = sentinel(machine)
    machine.kill_daemon()
    started(machine, "")
    wait_for("the end of the sentinel", lambda: not is_running(pid) and not is_running(watcher))
    client.goes_on()
    assert machine.clients() == {client.pid}


@pytest.mark.parametrize("part", [0, 1], ids=["watcher", "stopped client"])
def test_another_is_started_where_a_part_of_it_is_killed(machine: Machine, part: int) -> None:
    started(machine)
    client = machine.counter().ready()
    before = sentinel(machine)
    os.kill(before[part], signal.SIGKILL)
    wait_for("another sentinel", lambda: len(machine.journal("sentinel.ready")) == 2)
    assert not any(map(is_running, before))
    client.goes_on()


def test_it_does_not_outlive_its_server(machine: Machine) -> None:
    """Nor the directory by which mpsd would find it."""
    started(machine)
    machine.counter().ready()
    watcher, pid = sentinel(machine)
    machine.kill_daemon()
    os.kill(machine.vendor_pid("default"), signal.SIGKILL)
    os.kill(machine.journal("sentinel.ready")[0]["server"], signal.SIGKILL)
    wait_for("the end of the sentinel", lambda: not is_running(pid) and not is_running(watcher))
