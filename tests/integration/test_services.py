"""Services in a daemon: the active ends, faults, hangs, hands over, and another one goes on; with mpsd killed in between."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from mpsd_client import Refused, calls, values

from tests.integration.client import Client
from tests.integration.machine import ROOT, UIDS, Machine
from tests.integration.process import is_running, wait_for

PROGRAM = ROOT / "tests/integration/service_member.py"
SECONDS = 20.0


def member(machine: Machine, *words: str, **variables: str) -> Client:
    """One that has joined, and is ready."""
    number = len(list(machine.place.glob("member-*")))
    output = machine.place / f"member-{number}.jsonl"
    python = machine.variables["MPSD_PYTHON"]
    path = str(ROOT / "clients/python")
    with output.open("wb") as file:
        process = subprocess.Popen(
            [python, str(PROGRAM), "count", str(counted(machine)), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=machine.variables | {"PYTHONPATH": path} | variables,
            cwd="/",
            **machine._user(None),
        )
    machine.addition(process)
    made = Client(process, output)
    made.wait("ready", SECONDS)
    return made


def counted(machine: Machine) -> Path:
    return machine.place / "counted"


def count(machine: Machine) -> int:
    path = counted(machine)
    return int(path.read_text()) if path.exists() else 0


def look(machine: Machine) -> values.Service | None:
    """Return the service, or None while it does not exist, since its members have yet to join."""
    try:
        with machine.mpsd() as mpsd:
            return mpsd.ask(calls.service_get("count"))
    except (Refused, OSError):
        return None


def until_served_by(machine: Machine, who: Client) -> values.Service:
    def found() -> values.Service | None:
        view = look(machine)
        return view if view and view.phase == "serving" and view.writer_pid == who.pid else None

    view = wait_for(f"pid {who.pid} to serve", found, SECONDS)
    assert view
    before = count(machine)
    wait_for("it to get on", lambda: count(machine) > before, SECONDS)
    return view


def two(machine: Machine, *words: str) -> tuple[Client, Client]:
    """One that serves, and one that stands by, in domains of their own."""
    active = member(machine, *words)
    until_served_by(machine, active)
    standby = member(machine, *words)
    view = wait_for("the standby to be ready", lambda: is_ready(machine, standby), SECONDS)
    assert [each.is_apart for each in view.members] == [True, True]
    assert view.protection == ""
    return active, standby


def is_ready(machine: Machine, who: Client) -> values.Service | None:
    view = look(machine)
    standings = {each.pid: each.standing for each in view.members} if view else {}
    return view if standings.get(who.pid) == "ready" else None


def check_well(machine: Machine, *members: Client) -> None:
    assert machine.bugs() == []
    assert not [each.pid for each in members if each.events("two write")]


def test_the_standby_goes_on_where_the_active_was_killed(machine: Machine) -> None:
    machine.start()
    active, standby = two(machine)
    os.kill(active.pid, signal.SIGKILL)
    view = until_served_by(machine, standby)
    assert view.last
    assert (view.generation, view.last.cause, view.last.from_pid) == (2, "ended", active.pid)
    with machine.mpsd() as mpsd, pytest.raises(Refused, match="service count has it"):
        mpsd.ask(calls.arena_open("count", "write"))
    check_well(machine, active, standby)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["trap", "oob_write"])
def test_a_fault_of_another_in_the_actives_domain(machine: Machine, mode: str) -> None:
    machine.start()
    active, standby = two(machine)
    machine.client("faulter", mode, "--after", "0.2").ready()
    view = until_served_by(machine, standby)
    assert view.last
    assert (view.last.cause, view.last.from_pid) == ("fault", active.pid)
    [fenced] = [event["why"] for event in machine.journal("service.event") if event["what"] == "fenced"]
    # After a memory fault it may be gone before the driver has recovered, which is when a fault fences.
    assert "a fault has ended" in fenced or (mode == "oob_write" and "has ended with all its work" in fenced)
    wait_for("the end of the one that faulted", lambda: not is_running(active.pid), SECONDS)
    third = member(machine)
    assert wait_for("a new standby", lambda: is_ready(machine, third), SECONDS).protection == ""
    check_well(machine, active, standby, third)


@pytest.mark.slow
def test_handed_over_and_back(machine: Machine) -> None:
    machine.start()
    active, standby = two(machine)
    for number in range(2):  # with the first one, as many promotions as there may be within a minute
        with machine.mpsd() as mpsd:
            done = mpsd.ask(calls.service_handover("count"))
        assert (done.from_pid, done.to_pid) == (active.pid, standby.pid)
        view = until_served_by(machine, standby)
        assert view.last
        assert (view.last.cause, view.generation) == ("asked", number + 2)
        active, standby = standby, active
        wait_for("it to be ready again", lambda standby=standby: is_ready(machine, standby), SECONDS)
    check_well(machine, active, standby)


@pytest.mark.slow
def test_one_that_hangs_is_ended(machine: Machine) -> None:
    """Its kernels may run: its work on the GPU is ended first, and its co-runner goes on."""
    machine.start()
    active, standby = two(machine, "--heartbeat", "0.5")
    neighbour = machine.counter().ready()
    (machine.place / f"counted.{active.pid}").touch()
    view = until_served_by(machine, standby)
    assert view.last
    assert view.last.cause == "silent"
    assert not is_running(active.pid)
    neighbour.goes_on()
    check_well(machine, active, standby)


@pytest.mark.slow
def test_mpsd_is_killed_and_the_active_goes_on(machine: Machine) -> None:
    machine.start()
    active, standby = two(machine)
    machine.kill_daemon()
    machine.start()
    view = until_served_by(machine, active)
    assert view.generation == 1
    wait_for("the standby to be ready", lambda: is_ready(machine, standby), SECONDS)
    os.kill(active.pid, signal.SIGKILL)
    until_served_by(machine, standby)
    check_well(machine, active, standby)


@pytest.mark.slow
def test_one_that_hangs_while_mpsd_is_killed_is_ended(machine: Machine) -> None:
    """It cannot join the next mpsd, which knows its heartbeat all the same."""
    machine.configure("[services]\nfollow_grace = 2.0\n")
    machine.start()
    active, standby = two(machine, "--heartbeat", "0.5")
    neighbour = machine.counter().ready()
    os.kill(active.pid, signal.SIGSTOP)
    machine.kill_daemon()
    machine.start()
    view = until_served_by(machine, standby)
    assert view.last
    assert (view.generation, view.last.cause) == (2, "silent")
    assert not is_running(active.pid)
    neighbour.goes_on()
    check_well(machine, active, standby)


@pytest.mark.slow
def test_one_with_a_heartbeat_goes_on_while_mpsd_is_killed(machine: Machine) -> None:
    machine.configure("[services]\nfollow_grace = 2.0\n")
    machine.start()
    active, standby = two(machine, "--heartbeat", "0.5")
    for _ in range(2):
        machine.kill_daemon()
        machine.start()
        wait_for("the standby to be ready", lambda: is_ready(machine, standby), SECONDS)
        after = count(machine) + 150  # some seconds: by then each has joined, or was found silent
        wait_for("the active to get on", lambda after=after: count(machine) > after, SECONDS)
        assert until_served_by(machine, active).generation == 1
    check_well(machine, active, standby)


@pytest.mark.slow
@pytest.mark.root
def test_without_root_members_are_told_where_to_go(strangers: Machine) -> None:
    strangers.start()
    active, standby = two(strangers)
    os.kill(active.pid, signal.SIGKILL)
    until_served_by(strangers, standby)
    assert os.stat(f"/proc/{standby.pid}").st_uid == UIDS[0]
    check_well(strangers, active, standby)


@pytest.mark.slow
def test_what_the_owner_asks_for_outlives_mpsd(machine: Machine) -> None:
    machine.start()
    member(machine)
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.service_change("count", standbys=3, sm_percent=20, heartbeat_seconds=2))
    machine.kill_daemon()
    machine.start()
    view = look(machine)
    assert view
    assert (view.settings.standbys, view.settings.sm_percent, view.settings.heartbeat_seconds) == (3, 20, 2)
