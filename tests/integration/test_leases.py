"""Leases from the scheduler's side to the client's: what was asked for is what an unmodified program finds that it has."""

import signal
from collections.abc import Mapping

import pytest
from mpsd_client import Refused, Selector, calls

from tests.integration.client import Client
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

pytestmark = pytest.mark.root
GIB = 1 << 30
CONTEXT_MIB = 516  # what a context takes of a memory limit
ROOMY = "[admission]\nsm_oversubscription = 10.0\nmemory_oversubscription = 10.0\n"
SMS = {5: 8, 10: 12, 25: 32, 30: 38, 50: 66, 60: 78, 100: 132}  # of 132, as measured on an H200


def token(name: object) -> str:
    return f"{name}".rjust(24, "t")


def lease(machine: Machine, name: object, percent: float, gib: int = 0, **more: object) -> int:
    """Its id; clients name it by MPSD_LEASE."""
    memory = {"0": gib * GIB} if gib else None
    with machine.mpsd() as mpsd:
        made = mpsd.ask(
            calls.lease_create(str(name), Selector.of_token(token(name)), sm_percent=percent, memory_bytes=memory, **more)  # type: ignore[arg-type]
        )
    return made.id


def quota(machine: Machine, name: object = "", **variables: str) -> Client:
    own: Mapping[str, str] = {"MPSD_LEASE": token(name)} if name != "" else {}
    return machine.client("quota", "--most", "8192", **own, **variables)


def has(client: Client, percent: int, gib: int = 0) -> bool:
    """Exactly so many SMs, and no more memory than that less its context."""
    assert client.status() == 0, client.events("error")
    found = client.wait("quota")
    most = gib * 1024 - CONTEXT_MIB if gib else 8192
    return found["sms"] == found["seen"] == SMS[percent] and most - 64 < found["mib"] <= most


def test_three_clients_at_the_same_moment_each_have_their_own(machine: Machine) -> None:
    machine.start()
    for number, (percent, gib) in enumerate(((10, 2), (30, 3), (60, 4))):
        lease(machine, number, percent, gib)
    clients = [quota(machine, number) for number in range(3)] + [quota(machine)]
    assert [has(*row) for row in zip(clients, (10, 30, 60, 100), (2, 3, 4, 0), strict=True)] == [True] * 4


@pytest.mark.slow
def test_many_arrivals_and_no_limit_leaks(machine: Machine) -> None:
    """The kinds take turns, so each meets others before and after it."""
    machine.configure(ROOMY)
    machine.start()
    kinds = [(10, 2), (25, 3), (50, 4), (5, 2)]
    for number in range(24):
        lease(machine, number, *kinds[number % 4])
    clients = [quota(machine, number) for number in range(24)]
    assert [number for number, client in enumerate(clients) if not has(client, *kinds[number % 4])] == []


def test_each_context_of_a_process_and_each_process_of_a_lease(machine: Machine) -> None:
    """A lease of two processes is divided equally."""
    machine.start()
    lease(machine, "pair", 50, 6, processes=2)
    first, second = quota(machine, "pair", MPSD_SIM_FAST="0"), quota(machine, "pair", MPSD_SIM_FAST="0")
    assert has(first, 25, 3)
    assert has(second, 25, 3)


def test_without_limits_nothing_is_told_to_the_daemon(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    machine.counter().ready()
    assert not machine.journal("limits.per_client")


def test_a_clients_own_environment_can_only_lower(machine: Machine) -> None:
    machine.start()
    lease(machine, "a", 50, 4)
    lease(machine, "b", 25, 3)
    assert has(quota(machine, "a", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G"), 10, 2)
    assert has(quota(machine, "b", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=9G"), 25, 3)


def test_one_that_would_lift_its_limit_is_refused(machine: Machine) -> None:
    machine.start()
    lease(machine, "a", 50, 4)
    assert quota(machine, "a", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="7=1G").error() == 805
    assert "names '7'" in machine.wait_for_journal("client.refused")["why"]


def test_what_a_servers_user_set_holds_beside_leases_and_is_shown(machine: Machine) -> None:
    machine.start()
    lease(machine, "a", 60, 4)
    holder = machine.client("hold")
    holder.ready()
    server = machine.server()
    machine.tell(f"set_active_thread_percentage {server} 50")
    assert has(quota(machine, "a"), 50, 4)
    assert machine.tell(f"get_active_thread_percentage {server}") == "50.0\n"
    assert machine.tell(f"set_active_thread_percentage {server} 25") == "25.0\n"
    assert machine.tell(f"get_device_pinned_mem_limit {server} 0") == ""
    assert has(quota(machine), 25)


def test_reading_a_servers_limits_takes_no_memory_from_its_clients(machine: Machine) -> None:
    """Anyone may read them; the vendor's daemon shows 1535 MiB as 1G, and the server's clients had no more than that."""
    machine.start()
    machine.tell("set_default_device_pinned_mem_limit 0 1535M")
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("a", Selector.of_token(token("a")), sm_percent=50, memory_bytes={"0": 1400 << 20}))
    holder = machine.client("hold", MPSD_LEASE=token("a"))
    holder.ready()
    server = machine.server()
    holder.end()
    before = quota(machine, "a").wait("quota")["mib"]
    assert machine.ask(f"get_device_pinned_mem_limit {server} 0", uid=UIDS[0]).stdout == "1G\n"
    assert before > 1024 - CONTEXT_MIB
    assert quota(machine, "a").wait("quota")["mib"] == before


@pytest.mark.parametrize("by", [pytest.param("ordinal", marks=pytest.mark.slow), "UUID"])
def test_a_lease_of_the_second_gpu_and_its_memory_by_ordinal_or_uuid(machine: Machine, by: str) -> None:
    machine.start(MPSD_SIM_GPUS="2")
    name = "1" if by == "ordinal" else machine.uuids()[1]
    with machine.mpsd() as mpsd:
        selector = Selector.of_token(token("second"))
        mpsd.ask(calls.lease_create("second", selector, gpus=[name], sm_percent=25, memory_bytes={name: 3 * GIB}))
        with pytest.raises(Refused, match="names no device"):
            mpsd.ask(calls.lease_create("third", selector, sm_percent=25, memory_bytes={"2": GIB}))
    first, second = (gpu["used_mib"] for gpu in machine.status()["gpus"])
    client = quota(machine, "second", MPSD_SIM_FAST="1")
    assert has(client, 25, 3)
    holder = machine.client("hold", "--mem", "1024", MPSD_LEASE=token("second")).ready()
    after = [gpu["used_mib"] for gpu in machine.status()["gpus"]]
    assert after[0] - first < 1024 <= after[1] - second
    holder.end()


# -- refusing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["error", *(pytest.param(way, marks=pytest.mark.slow) for way in ("wait", "end"))])
def test_a_client_without_a_lease_is_refused_and_never_runs(machine: Machine, way: str) -> None:
    machine.configure(f'[admission]\ndefault = "refuse"\nrefuse_with = "{way}"\n')
    machine.start()
    lease(machine, "a", 50)
    refused = machine.counter()
    assert has(quota(machine, "a"), 50)  # by now the other has been dealt with
    if way == "error":
        assert refused.error() == 805
    elif way == "end":
        assert refused.status() == -signal.SIGKILL
    else:
        assert refused.is_silent()
        [waiting] = queue(machine)
        assert (waiting.position, waiting.pid) == (1, refused.pid)
    assert not refused.events("ready")
    assert machine.kinds().get(refused.pid) in (None, "client")


@pytest.mark.slow
def test_who_finds_a_domains_own_socket_gets_no_context(machine: Machine) -> None:
    machine.configure('[admission]\ndefault = "refuse"\n')
    machine.start()
    directory = str(machine.state / "domains/default/pipe")

    def is_refused() -> bool:
        stranger = machine.client("quota", CUDA_MPS_PIPE_DIRECTORY=directory)
        stranger.status()
        return [each["code"] for each in stranger.events("error")] == [2]

    assert is_refused()
    lease(machine, "a", 50, 3)
    assert has(quota(machine, "a"), 50, 3)
    # Its window is open until mpsd has read of its arrival; so long the socket, which root alone reaches, has its limits.
    wait_for("the window to end", is_refused)
    assert is_refused()


@pytest.mark.slow
def test_one_that_waits_gets_in_when_its_lease_comes(machine: Machine) -> None:
    machine.configure('[admission]\ndefault = "refuse"\n')
    machine.start()
    client = quota(machine, "later")
    wait_for("it to wait", lambda: queue(machine))
    lease(machine, "later", 30, 3)
    assert has(client, 30, 3)


def queue(machine: Machine) -> list[object]:
    with machine.mpsd() as mpsd:
        return list(mpsd.pages(calls.queue_list()))


# -- users, domains ------------------------------------------------------------------------------------------------------


def test_a_user_neither_sees_nor_uses_anothers_lease(machine: Machine) -> None:
    machine.start()
    mine, other = UIDS
    with machine.mpsd(mine) as mpsd:
        made = mpsd.ask(calls.lease_create("mine", Selector.of_token(token("mine")), sm_percent=25))
    with machine.mpsd(other) as mpsd:
        assert list(mpsd.pages(calls.lease_list())) == []
        with pytest.raises(Refused):
            mpsd.ask(calls.lease_release(made.id))
    assert has(machine.client("quota", "--most", "8192", uid=mine, MPSD_LEASE=token("mine")), 25)
    assert has(machine.client("quota", "--most", "8192", uid=other, MPSD_LEASE=token("mine")), 100)


def test_a_lease_of_its_own_domain_and_one_of_a_group(machine: Machine) -> None:
    machine.start()
    lease(machine, "alone", 20, domain="own")
    for name in ("one", "two"):
        lease(machine, name, 20, domain="group", group="blue")
    clients = {
        name: machine.counter(**({"MPSD_LEASE": token(name)} if name != "shared" else {})).ready()
        for name in ("shared", "alone", "one", "two")
    }
    domain = {name: machine.domain_of(client) for name, client in clients.items()}
    assert domain["one"] == domain["two"]
    assert len(set(domain.values())) == 3


@pytest.mark.slow
def test_a_client_goes_to_another_domain_at_its_next_start(machine: Machine) -> None:
    machine.start()
    first = machine.counter().ready()
    spare = machine.with_spare()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.client_move(first.pid, spare))
    assert machine.domain_of(first) != spare
    assert machine.domain_of(machine.counter().ready()) == spare
    assert machine.domain_of(machine.counter().ready()) == machine.domain_of(first)


# -- restarts ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_kill_9_leases_clients_and_limits_are_what_they_were(machine: Machine) -> None:
    machine.start()
    lease(machine, "a", 30, 3)
    lease(machine, "b", 60)
    holder = machine.client("counter", "--seconds", "600", "--ms", "50", MPSD_LEASE=token("a")).ready()
    machine.kill_daemon_idle()
    late = quota(machine, "b")
    machine.start()
    assert has(late, 60)
    with machine.mpsd() as mpsd:
        leases = {each.name: each.clients for each in mpsd.pages(calls.lease_list())}
        assert leases == {"a": 1, "b": 0} or leases == {"a": 1, "b": 1}
    second = quota(machine, "a")  # the lease is for one process, and that one still runs
    wait_for("it to wait", lambda: queue(machine))
    assert second.is_silent()
    holder.end()
    assert has(second, 30, 3)
    assert has(quota(machine), 100)


@pytest.mark.slow
def test_killed_in_the_middle_of_arrivals_no_client_gets_more_than_its_own(machine: Machine) -> None:
    """Each either has its own, or an error, or waits; the new mpsd lets the next ones in with theirs."""
    machine.configure(ROOMY)
    machine.start()
    for number in range(8):
        lease(machine, number, 10 if number % 2 else 60, 3)
    clients = [quota(machine, number) for number in range(8)]
    wait_for("the first to have arrived", lambda: any(client.events("quota") for client in clients))
    machine.kill_daemon()
    machine.start()
    assert has(quota(machine), 100)
    for number, client in enumerate(clients):
        most = SMS[10 if number % 2 else 60]
        wait_for("it to have run, failed or be held", lambda client=client: settled(machine, client))
        assert all(found["sms"] <= most for found in client.events("quota")), number
        assert machine.kinds().get(client.pid) in (None, "client")


def settled(machine: Machine, client: Client) -> bool:
    return client.process.poll() is not None or client.pid in {entry["pid"] for entry in machine.journal("relay.held")}


def test_leases_outlive_a_quit_and_lapse_by_their_own_time(machine: Machine) -> None:
    machine.start()
    lease(machine, "a", 30)
    assert machine.quit() == 0
    machine.start()
    with machine.mpsd() as mpsd:
        assert [each.name for each in mpsd.pages(calls.lease_list())] == ["a"]


def test_without_root_a_lease_is_refused_rather_than_not_kept(strangers: Machine) -> None:
    strangers.start()
    with strangers.mpsd(strangers.uid) as mpsd, pytest.raises(Refused, match="need root"):
        mpsd.ask(calls.lease_create("a", Selector.of_token(token("a")), sm_percent=25))
