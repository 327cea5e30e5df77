"""`mpsctl service run`, with the real daemon: members that are killed, changed, counted by another starter, ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Refused, calls, values

from tests.integration.machine import ROOT, Machine
from tests.integration.process import is_running, variable, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.deadline(120)]
EXAMPLE = ROOT / "clients/python/examples/count_service.py"
MEMBER = Path(__file__).with_name("service_member.py")
WAITS_SECONDS = 40.0
END_SECONDS = 60.0


class Starter:
    """A starter of the service "count", whose members count in a file."""

    def __init__(self, machine: Machine, *words: str, command: Sequence[str] = ()) -> None:
        self.machine, self.file, self.logs = machine, machine.place / "count", machine.place / "logs"
        self._said = machine.place / f"starter-{len(list(machine.place.glob('starter-*')))}"
        program = [sys.executable, "-m", "mpsctl", "service", "run", "count", "--json", "--log-dir", str(self.logs), *words]
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                [*program, "--", *(command or (sys.executable, str(MEMBER), "count", str(self.file)))],
                env=machine.variables,
                stdout=file,
            )

    def text(self) -> str:
        return self._said.read_text()

    def said(self, event: str) -> list[Any]:
        lines = [json.loads(line) for line in self.text().splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if line["event"] == event]

    def service(self) -> values.Service | None:
        with self.machine.mpsd() as mpsd:
            try:
                return mpsd.ask(calls.service_get("count"))
            except Refused:
                return None

    def wait(self, what: str, is_so: Callable[[values.Service], bool]) -> values.Service:
        """For a service that is served, protected, and so."""

        def look() -> values.Service | None:
            found = self.service()
            is_well = found is not None and found.phase == "serving" and not found.protection
            return found if found is not None and is_well and is_so(found) else None

        return wait_for(what, look, WAITS_SECONDS)

    def counts_on(self) -> None:
        before = int(self.file.read_text())
        wait_for("the count to go on", lambda: int(self.file.read_text() or "0") > before, WAITS_SECONDS)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


@contextmanager
def begun(machine: Machine, *words: str, command: Sequence[str] = ()) -> Iterator[Starter]:
    starter = Starter(machine, *words, command=command)
    try:
        yield starter
    finally:
        starter.process.kill()
        starter.process.wait()
        print(starter.text())  # shown where the test fails


def pids(service: values.Service) -> set[int]:
    return {member.pid for member in service.members}


def test_members_are_kept_changed_and_ended(machine: Machine) -> None:
    """The active is killed: the standby serves, and a new standby starts. Then all members are replaced by members with another
    share. In the end no process is left."""
    machine.configure("[services]\nmost_promotions = 100\n[admission]\nsm_oversubscription = 0.9\n")
    machine.start()
    with begun(machine, "--standbys", "1", "--sm", "20%") as starter:
        first = starter.wait("two members", lambda it: len(it.members) == 2 and it.settings.sm_percent == 20.0)
        assert first.writer_pid is not None
        os.kill(first.writer_pid, signal.SIGKILL)
        second = starter.wait("another standby", lambda it: it.writer_pid != first.writer_pid and len(it.members) == 2)
        starter.counts_on()

        with machine.mpsd() as mpsd:
            mpsd.ask(calls.service_change("count", sm_percent=100.0))
            wait_for("a word on that", lambda: starter.said("impossible"), WAITS_SECONDS)
            mpsd.ask(calls.service_change("count", sm_percent=25.0))
        third = starter.wait("new members alone", lambda it: len(it.members) == 2 and not pids(it) & pids(second))
        starter.counts_on()
        assert not starter.said("no_room")
        assert third.last is not None
        assert third.last.cause == "asked"
        assert third.generation == second.generation + 1
        wait_for("the end of the old ones", lambda: not any(map(is_running, pids(second))), WAITS_SECONDS)
        with machine.mpsd() as mpsd:
            wait_for("their leases alone", lambda: [it.sm_percent for it in mpsd.pages(calls.lease_list())] == [25.0, 25.0])

        assert starter.end() == 0
        assert not any(map(is_running, pids(third)))
        assert [event["member"] for event in starter.said("stopping")][-1] == _number(starter, third.writer_pid)
        with machine.mpsd() as mpsd:
            assert not list(mpsd.pages(calls.lease_list()))
    assert {path.name for path in starter.logs.iterdir()} >= {"count-1.log", "count-2.log"}


def _number(starter: Starter, pid: int | None) -> Any:
    return next(event["member"] for event in starter.said("started") if event["pid"] == pid)


def test_another_starter_counts_those_of_the_one_that_was_killed(machine: Machine) -> None:
    """And adds one where that was asked for; it ends its own alone."""
    machine.start()
    with begun(machine) as killed:
        first = killed.wait("two members", lambda it: len(it.members) == 2)
        killed.process.kill()
        killed.process.wait()
    killed.counts_on()
    with begun(machine, "--standbys", "2") as starter:
        second = starter.wait("a third member", lambda it: len(it.members) == 3)
        assert pids(first) < pids(second)
        assert second.writer_pid == first.writer_pid
        assert [event["pid"] for event in starter.said("started")] == list(pids(second) - pids(first))
        assert starter.end(signal.SIGINT) == 0
    assert {pid for pid in pids(second) if is_running(pid)} == pids(first)
    killed.counts_on()


def test_the_starter_waits_for_mpsd(machine: Machine) -> None:
    """mpsd is killed and started again: the starter neither starts nor ends a member for that."""
    machine.start()
    with begun(machine) as starter:
        first = starter.wait("two members", lambda it: len(it.members) == 2)
        machine.kill_daemon()
        machine.kill_daemon()
        wait_for("the starter to notice", lambda: starter.said("mpsd_gone"), WAITS_SECONDS)
        machine.start()
        wait_for("the starter to notice", lambda: starter.said("mpsd_back"), WAITS_SECONDS)
        second = starter.wait("the same members", lambda it: len(it.members) == 2)
        assert pids(second) == pids(first)
        assert starter.end() == 0
        assert len(starter.said("started")) == 2
    assert not any(map(is_running, pids(first)))


@pytest.mark.parametrize("words", [(), ("--remove-arena",)])
def test_all_ends_when_the_work_is_done(words: tuple[str, ...], machine: Machine) -> None:
    """The active ends with status 0, since its work is done: the starter starts no member again, and no other member serves.
    The arena with the result stays, unless the test asks for its removal."""
    machine.start()
    command = [sys.executable, str(EXAMPLE), "--service", "count", "--steps", "60", "--pace", "0.05"]
    with begun(machine, "--until-done", *words, command=command) as starter:
        assert starter.process.wait(END_SECONDS) == 0
        assert len(starter.said("started")) == 2
        serving = [path.name for path in starter.logs.iterdir() if '"event": "promoted"' in path.read_text()]
        assert len(serving) == 1
        with machine.mpsd() as mpsd:
            assert [arena.name for arena in mpsd.pages(calls.arena_list())] == ([] if words else ["count"])
        assert len(starter.said("arena_removed" if words else "arena_stays")) == 1


def test_without_root_it_says_that_nothing_is_enforced(strangers: Machine) -> None:
    strangers.start()
    command = [strangers.variables["MPSD_PYTHON"], "-m", "mpsctl", "service", "run", "count", "--json", "--sm", "20%"]
    path = {"PYTHONPATH": f"{ROOT / 'clients/mpsctl'}:{ROOT / 'clients/python'}"}
    environ = strangers.variables | path | {"MPSD_PIPE_DIRECTORY": "/of/another"}
    starter = subprocess.Popen(
        [*command, "--standbys", "0", "--socket", str(strangers.pipe / "mpsd.sock"), "--", "sleep", "1000"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        user=strangers.uid,
    )
    assert starter.stdout is not None
    try:
        said = [json.loads(starter.stdout.readline()) for _ in range(2)]
        assert [each["event"] for each in said] == ["not_enforced", "started"]
        assert said[1]["lease_id"] is None
        assert variable(said[1]["pid"], "CUDA_MPS_PIPE_DIRECTORY") == str(strangers.pipe)
        assert not variable(said[1]["pid"], "MPSD_PIPE_DIRECTORY")
        starter.terminate()
        assert starter.wait(END_SECONDS) == 0
    finally:
        starter.kill()
        starter.communicate()
    assert not is_running(said[1]["pid"])


def test_a_change_under_a_tight_budget_costs_no_standby_that_it_need_not(machine: Machine) -> None:
    """Three members of 25 % fit, but not while one is ending. Two of 60 % never fit, even without a standby: all stay as they
    are. Two of 36 % fit if each makes room; of two of 15 % only the first has to."""
    machine.configure("[services]\nmost_promotions = 100\n[admission]\nsm_oversubscription = 0.75\n")
    machine.start()
    with begun(machine, "--standbys", "1", "--sm", "25%") as starter, machine.mpsd() as mpsd:
        known = starter.wait("two members", lambda it: len(it.members) == 2 and it.settings.sm_percent == 25.0)
        for percent, made_way in ((24.0, 0), (60.0, 0), (36.0, 2), (15.0, 3)):
            said = len(starter.said("waits_for_room"))
            mpsd.ask(calls.service_change("count", sm_percent=percent))
            if percent == 60.0:
                wait_for("a word on that", lambda: len(starter.said("waits_for_room")) > said, WAITS_SECONDS)  # noqa: B023
                assert pids(starter.wait("the same", lambda it: True)) == pids(known)
            else:
                is_new = lambda it: len(it.members) == 2 and not pids(it) & pids(known)  # noqa: B023, E731
                known = starter.wait(f"two members with {percent} %", is_new)
            assert len(starter.said("no_room")) == made_way
        starter.counts_on()
        assert starter.end() == 0


def test_a_quit_that_waits_for_the_members_is_said_and_they_go_on(machine: Machine) -> None:
    """The starter replaces no member that ends, and ends together with mpsd."""
    machine.start()
    with begun(machine) as starter:
        first = starter.wait("two members", lambda it: len(it.members) == 2)
        quitting = machine.begin(typed="quit\n")
        (said,) = wait_for("a word on that", lambda: starter.said("mpsd_stopping"), WAITS_SECONDS)
        assert said["ends_at"] is None
        standby = next(member.pid for member in first.members if not member.is_writer)
        os.kill(standby, signal.SIGKILL)
        wait_for("its end", lambda: starter.said("ended"), WAITS_SECONDS)
        starter.counts_on()
        assert len(starter.said("started")) == 2
        assert quitting.poll() is None
        assert starter.end() == 0
        assert quitting.wait(END_SECONDS) == 0


def test_before_a_quit_that_does_not_wait_the_members_are_ended_and_started_again_after(machine: Machine) -> None:
    """As when systemd restarts mpsd: no member is ended during its work. In this case a caller had asked mpsd to wait
    before."""
    machine.start()
    with begun(machine) as starter:
        first = starter.wait("two members", lambda it: len(it.members) == 2)
        machine.begin(typed="quit\n")
        wait_for("a word on that", lambda: starter.said("mpsd_stopping"), WAITS_SECONDS)
        assert machine.quit("quit -t 30", seconds=25) == 0
        assert [event["ends_at"] is None for event in starter.said("mpsd_stopping")] == [True, False]
        assert len(starter.said("stopping")) == 2
        assert starter.said("stopping")[-1]["member"] == _number(starter, first.writer_pid)
        wait_for("the starter to notice", lambda: starter.said("mpsd_gone"), WAITS_SECONDS)
        machine.start()
        second = starter.wait("two members", lambda it: len(it.members) == 2)
        assert not pids(first) & pids(second)
        assert starter.end() == 0
