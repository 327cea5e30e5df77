"""An SM exception in a domain with a sentinel, on the simulator: who is named, who continues, what becomes of the domain."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import calls, values

from mpsd.host.processes import children
from tests.integration.cgroup import freeze, open_cgroup
from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_faults import told, until
from tests.integration.test_sentinels import ON, sentinel, started
from tests.integration.test_shim import shim

pytestmark = pytest.mark.root
# Mostly a quit takes 1 s. Its waits end: 5 s for a query before the exception is reported, 7 s for the sentinel, 10 s for the
# vendor daemon, and where that has to be killed 9 s more. The rest is for a busy machine.
QUIT_SECONDS = 60.0
LEAVE = f'{ON}[faults]\nculprit = "leave"\n'


def fault(machine: Machine, mode: str = "misaligned") -> tuple[Client, Client]:
    """Return a client that continues beside one that has faulted; the domain is contained."""
    victim = machine.counter().ready()
    culprit = machine.client("faulter", mode, "--after", "0.3", "--linger", "60").ready()
    machine.wait_for_journal("domain.contained")
    return victim, culprit


def incident(machine: Machine) -> values.IncidentReport:
    machine.wait_for_journal("fault.opened")
    [number] = {event["number"] for event in machine.journal("fault.opened")}
    with machine.mpsd() as mpsd:
        return mpsd.ask(calls.fault_get(number))


def states(machine: Machine) -> dict[str, str]:
    with machine.mpsd() as mpsd:
        return {each.name: each.state for each in mpsd.ask(calls.domain_list()).items}


def named(machine: Machine) -> values.IncidentReport:
    machine.wait_for_journal("fault.culprit")
    return incident(machine)


def accused(machine: Machine) -> set[int]:
    """Return who is named as the culprit of any fault."""
    with machine.mpsd() as mpsd:
        found = [mpsd.ask(calls.fault_get(number)) for number in {each["number"] for each in machine.journal("fault.opened")}]
    return {each.culprit.pid for each in found if each.culprit}


def test_the_culprit_is_named_and_the_others_continue(machine: Machine) -> None:
    started(machine, LEAVE)
    victim, culprit = fault(machine)
    found = named(machine)
    assert found.culprit
    assert (found.culprit.pid, found.confidence, found.fault_class, found.victims) == (culprit.pid, "proven", "sm", ())
    victim.goes_on()
    assert len(machine.journal("fault.opened")) == 1


XID = {"MPSD_SIM_CONTAINED_XID": "1"}
ORDERS = {
    "both": {},
    "Xid first": {"MPSD_SIM_SM_EVENT_DELAY_MS": "60"},
    "Xid late": {"MPSD_SIM_XID_DELAY_MS": "300"},
}


@pytest.mark.parametrize("mode", ["misaligned", "trap"])
@pytest.mark.parametrize("delays", ORDERS.values(), ids=ORDERS)
def test_the_xid_of_a_contained_exception_ends_nothing(machine: Machine, mode: str, delays: dict[str, str]) -> None:
    started(machine, LEAVE, **XID, **delays)
    victim, _ = fault(machine, mode)
    wait_for("the Xid", lambda: 43 in {each.number for each in incident(machine).xids})
    assert incident(machine).victims == ()
    assert states(machine)["default"] == "contained"
    victim.goes_on()
    assert len(machine.journal("fault.opened")) == 1


def test_an_xid_counts_where_the_sentinel_reports_nothing(machine: Machine) -> None:
    """As where the driver's event is lost."""
    started(machine, LEAVE, MPSD_SIM_SM_EVENT_DELAY_MS="600000", **XID)
    machine.counter().ready()
    machine.client("faulter", "misaligned", "--after", "0.3", "--linger", "60").ready()
    seen = machine.wait_for_journal("fault.opened")
    assert seen
    assert not machine.journal("domain.contained")


def test_without_a_program_counter_all_are_suspects(machine: Machine) -> None:
    started(machine, LEAVE)
    victim, culprit = fault(machine, "trap")
    wait_for("the suspects", lambda: incident(machine).confidence == "suspected")
    assert {each.pid for each in incident(machine).suspects} == {victim.pid, culprit.pid}
    victim.goes_on()


def test_who_reports_the_error_is_likely_the_culprit(machine: Machine) -> None:
    """The shim reports it at once, and other clients get no error."""
    started(machine, LEAVE)
    victim = machine.counter().ready()
    culprit = machine.client("faulter", "trap", "--after", "0.3", "--linger", "60", **shim(machine)).ready()
    found = named(machine)
    assert found.culprit
    assert (found.culprit.pid, found.confidence) == (culprit.pid, "likely")
    victim.goes_on()


def test_who_alone_ends_with_an_error_is_likely_the_culprit(machine: Machine) -> None:
    started(machine, LEAVE)
    victim = machine.counter().ready()
    culprit = machine.client("faulter", "trap", "--after", "0.3", "--linger", "0.2").ready()
    found = named(machine)
    assert found.culprit
    assert (found.culprit.pid, found.confidence) == (culprit.pid, "likely")
    victim.goes_on()


def test_alone_it_is_the_culprit_without_a_program_counter(machine: Machine) -> None:
    started(machine, LEAVE)
    culprit = machine.client("faulter", "trap", "--after", "0.3", "--linger", "60").ready()
    found = named(machine)
    assert found.culprit
    assert (found.culprit.pid, found.confidence) == (culprit.pid, "alone")


def test_the_domain_takes_no_newcomer_and_answers_from_what_mpsd_knows(machine: Machine) -> None:
    started(machine, LEAVE)
    victim, culprit = fault(machine)
    server = machine.server_of(victim)
    assert states(machine)["default"] == "contained"
    newcomer = machine.counter().ready()
    assert machine.server_of(newcomer) != server
    assert set(machine.numbers(f"get_client_list {server}")) == {victim.pid, culprit.pid}
    for command in (f"terminate_client {server} {victim.pid}", f"shutdown_server {server}", f"device_query {server}"):
        refused = machine.ask(command)
        assert "answers no command" in refused.stdout + refused.stderr, command
    victim.goes_on()
    newcomer.goes_on()


def test_it_starts_afresh_after_its_last_client(machine: Machine) -> None:
    started(machine, LEAVE)
    victim, culprit = fault(machine)
    for each in (culprit, victim):
        each.end(signal.SIGKILL)
    ends = ("domain.kill", "domain.recycling")  # the latter if the sentinel ended first, and the server reported the fault
    wait_for("a fresh domain", lambda: states(machine).get("default") == "ready" and any(map(machine.journal, ends)))
    assert not set(sentinel_pids(machine)) & set(machine.processes())
    machine.counter().ready()


def sentinel_pids(machine: Machine) -> list[int]:
    return [pid for event in machine.journal("sentinel.ready") for pid in event["pids"]][:1]


@pytest.mark.parametrize("mode", ["misaligned", "stack_overflow"])
def test_mpsd_ends_the_culprit_and_the_others_continue(machine: Machine, mode: str) -> None:
    """One that hangs too: the sentinel holds its descriptors."""
    started(machine, f"{ON}[faults]\nculprit_seconds = 0.2\n")
    victim, culprit = fault(machine, mode)
    culprit.process.wait(20)
    victim.goes_on()


def test_a_co_runner_that_ends_does_not_harm_the_others(machine: Machine) -> None:
    started(machine, LEAVE)
    third = machine.counter().ready()
    victim, _ = fault(machine)
    third.end(signal.SIGKILL)
    victim.goes_on()


@pytest.mark.slow
def test_after_the_deadline_the_rest_is_ended(machine: Machine) -> None:
    started(machine, LEAVE.replace('"on"', '"on"\ndrain_seconds = 2.0'))
    victim, _ = fault(machine)
    [told] = machine.journal("domain.contained")
    assert "its clients are ended at" in told["why"]
    assert victim.error() != 0
    machine.counter().ready()
    assert [each["why"] for each in machine.journal("domain.kill")] == ["sentinel.drain_seconds are over"]


def test_the_deadline_is_announced_and_shown(machine: Machine) -> None:
    started(machine, LEAVE)
    with told(machine, "domain.*") as mpsd:
        before = time.time()
        fault(machine)
        ends_at = until(mpsd, "domain.contained").facts["ends_at"]
    assert before + 3599 <= ends_at <= time.time() + 3601
    with machine.mpsd() as mpsd:
        [domain] = [each for each in mpsd.ask(calls.domain_list()).items if each.state == "contained"]
    assert domain.ends_at is not None
    assert abs(domain.ends_at - ends_at) <= 1
    for word in ("domains", "status"):
        shown = machine.run("-m", "mpsctl", word, program=Path(sys.executable)).stdout
        assert re.search(r"contained until \d\d:\d\d:\d\d|default, ends its clients at \d\d:\d\d:\d\d", shown), shown


def test_without_a_deadline_there_is_no_time(machine: Machine) -> None:
    started(machine, LEAVE.replace('"on"', '"on"\ndrain_seconds = 0'))
    with told(machine, "domain.*") as mpsd:
        fault(machine)
        assert until(mpsd, "domain.contained").facts["ends_at"] is None
    assert states(machine)["default"] == "contained"


def test_the_next_mpsd_keeps_the_domain_contained(machine: Machine) -> None:
    started(machine, LEAVE)
    victim, culprit = fault(machine)
    server = machine.server_of(victim)
    machine.kill_daemon()
    machine.start()
    assert states(machine)["default"] == "contained"
    wait_for("both in the list", lambda: set(machine.numbers(f"get_client_list {server}")) == {victim.pid, culprit.pid})
    victim.goes_on()
    newcomer = machine.counter().ready()
    assert machine.server_of(newcomer) != server
    assert len({event["number"] for event in machine.journal("fault.opened")}) == 1
    victim.goes_on()


@pytest.mark.slow
def test_an_exception_while_no_mpsd_runs_is_contained(machine: Machine) -> None:
    started(machine, LEAVE)
    victim = machine.counter().ready()
    culprit = machine.client("faulter", "misaligned", "--after", "1.5", "--linger", "60").ready()
    watcher, _ = sentinel(machine)
    wait_for("the pidfds of the server and of both clients", lambda: pidfds(watcher) == 4)
    machine.kill_daemon()
    wait_for("their holders", lambda: len(children(watcher)) == 3)
    machine.start()
    found = named(machine)
    assert found.culprit
    assert found.culprit.pid == culprit.pid
    assert states(machine)["default"] == "contained"
    victim.goes_on()


def pidfds(watcher: int) -> int:
    """Return how many the watcher has: one of its client, of the server, and of each client."""
    folder = f"/proc/{watcher}/fd"
    return sum("pidfd" in os.readlink(f"{folder}/{each}") for each in os.listdir(folder))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["misaligned", "trap"])
def test_a_second_exception_ends_all_and_is_another_fault(machine: Machine, mode: str) -> None:
    """After its RESUME clients with long kernels would hang (H200).  Without a program counter nobody is accused of it."""
    started(machine, LEAVE)
    second = machine.client("faulter", mode, "--after", "6", "--linger", "60").ready()
    victim, first = fault(machine)
    assert victim.error() != 0
    wait_for("both faults", lambda: len(machine.journal("fault.opened")) == 2)
    wait_for("a verdict", lambda: accused(machine) == ({first.pid, second.pid} if mode == "misaligned" else {first.pid}))
    gone = machine.wait_for_journal("sentinel.gone")
    assert "reported an exception again" in gone["why"]
    machine.counter().ready().goes_on()


@pytest.mark.parametrize("part", [0, 1], ids=["watcher", "stopped client"])
def test_a_part_that_is_killed_ends_it_as_on_stock_mps(machine: Machine, part: int) -> None:
    started(machine, LEAVE)
    victim, _ = fault(machine)
    before = sentinel(machine)
    os.kill(before[part], signal.SIGKILL)
    assert victim.error() != 0
    wait_for("its end", lambda: not any(map(is_running, before)))
    machine.counter().ready()


@pytest.mark.parametrize("is_daemon", [False, True], ids=["server", "vendor daemon"])
def test_a_death_of_the_vendors_part_ends_the_clients_and_accuses_none(machine: Machine, is_daemon: bool) -> None:
    started(machine, LEAVE)
    victim, _ = fault(machine, "trap")
    before = sentinel(machine)
    server = machine.journal("sentinel.ready")[0]["server"]
    os.kill(machine.vendor_pid("default") if is_daemon else server, signal.SIGKILL)
    assert victim.error() != 0
    wait_for("the sentinel's end", lambda: not any(map(is_running, before)))
    wait_for("a verdict that does not accuse the victim", lambda: victim.pid not in accused(machine))
    machine.counter().ready().goes_on()


@pytest.mark.slow
def test_a_sentinel_that_is_killed_later_makes_no_client_a_culprit(machine: Machine) -> None:
    """The last one there would be accused of what its server then reports, since it is alone."""
    started(machine, LEAVE)
    victim, culprit = fault(machine)
    named(machine)
    culprit.end(signal.SIGKILL)
    wait_for("a settled fault", lambda: incident(machine).is_settled)
    os.kill(sentinel(machine)[0], signal.SIGKILL)
    assert victim.error() != 0
    machine.counter().ready().goes_on()
    wait_for("the end of the domain's fault", lambda: states(machine).get("default") == "ready")
    assert accused(machine) == {culprit.pid}


def test_a_customer_that_is_stopped_afterwards_harms_no_other(machine: Machine) -> None:
    started(machine, LEAVE)
    third = machine.counter().ready()
    victim, culprit = fault(machine)
    os.kill(third.pid, signal.SIGSTOP)
    victim.goes_on()
    culprit.end(signal.SIGKILL)
    victim.goes_on()
    os.kill(third.pid, signal.SIGCONT)
    third.goes_on()
    assert states(machine)["default"] == "contained"


@pytest.mark.parametrize("is_after", [False, True], ids=["before the exception", "after it"])
def test_a_frozen_customer_continues_when_it_is_thawed(machine: Machine, is_after: bool) -> None:
    """As `docker pause` does it."""
    started(machine, LEAVE)
    third = machine.counter().ready()
    with open_cgroup() as cgroup:
        if is_after:
            victim, _ = fault(machine)
            freeze(cgroup, third)
        else:
            freeze(cgroup, third)
            victim, _ = fault(machine)
        victim.goes_on()
        (cgroup / "cgroup.freeze").write_text("0")
        third.goes_on()
        assert states(machine)["default"] == "contained"


def test_where_a_client_would_hang_all_end_and_the_culprit_is_named(machine: Machine) -> None:
    """Its block was on the SM of the exception."""
    started(machine, LEAVE, MPSD_SIM_SM_SHARED="1")
    victim, culprit = fault(machine)
    assert victim.error() == 716
    wait_for("the verdict", lambda: incident(machine).victims)  # with the sentinel's end, a moment after the culprit
    found = incident(machine)
    assert found.culprit
    assert (found.culprit.pid, [each.pid for each in found.victims]) == (culprit.pid, [victim.pid])
    assert found.confidence == "proven"
    assert "had other warps" in machine.wait_for_journal("sentinel.gone")["why"]
    assert states(machine).get("default") != "contained"
    machine.counter().ready().goes_on()


ENDS = ("quit.", "domain.kill", "domain.swept", "domain.failed", "server.kill", "sentinel.kill", "sentinel.gone")


def end_of(machine: Machine) -> list[dict[str, Any]]:
    """Return what mpsd logged about how it ended its domains."""
    return [each for each in machine.journal() if each["event"].startswith(ENDS)]


def test_quit_ends_a_contained_domain(machine: Machine) -> None:
    started(machine, LEAVE)
    fault(machine)
    done = machine.ask("quit -t 0", seconds=QUIT_SECONDS)
    left = machine.processes("mpsd-sentinel"), machine.processes("nvidia-cuda-mps-server")
    assert (done.returncode, *left) == (0, [], []), f"{done} {end_of(machine)}"


def test_a_memory_fault_ends_the_sentinel_and_then_all_clients(machine: Machine) -> None:
    """A stopped client would keep the server from it."""
    started(machine, LEAVE)
    victim = machine.counter().ready()
    machine.client("faulter", "oob_write", "--after", "0.3", "--linger", "60").ready()
    before = sentinel(machine)
    assert victim.error() == 700
    wait_for("its end", lambda: not any(map(is_running, before)))
    assert not machine.journal("domain.contained")


@pytest.mark.slow
def test_after_a_memory_fault_the_next_server_has_a_sentinel_at_once(machine: Machine) -> None:
    started(machine, f"{LEAVE}[domains]\nspares = 0\nmax_domains = 1\n")
    victim = machine.counter().ready()
    machine.client("faulter", "oob_write", "--after", "0.3").ready()
    assert victim.error() == 700
    machine.counter().ready()
    assert len(machine.journal("sentinel.ready")) == 2
