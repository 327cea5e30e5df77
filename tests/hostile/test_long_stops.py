"""Each component is stopped for 30 s, longer than most deadlines: it harms no other process, and continues afterwards.

All of them run at the same time, each on a separate machine, since most of the time is waiting.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from tests.integration.machine import FRONT_END, Machine, open_machine
from tests.integration.process import program_of, state_of, wait_for
from tests.integration.test_starter import EXAMPLE, Starter, begun, pids
from tests.integration.test_vault import vault_keeper

STOP_SECONDS = 30.0
AFTER_SECONDS = 40.0
FRIENDLY = 1000
COUNTS = (sys.executable, str(EXAMPLE), "--service", "count", "--steps", "1000000", "--pace", "0.01", "--every", "10")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """For 30 s, less what the block takes."""
    begin = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    wait_for(f"pid {pid} to stop", lambda: state_of(pid) == "T")
    try:
        yield
        time.sleep(max(0.0, STOP_SECONDS - (time.monotonic() - begin)))
    finally:
        with suppress(ProcessLookupError):  # mpsd has replaced it
            os.kill(pid, signal.SIGCONT)


def child(machine: Machine, program: str) -> int:
    """Of mpsd, also one without its environment."""

    def look() -> int:
        tasks = Path(f"/proc/{machine.daemon_pid()}/task").glob("*/children")
        return next((int(pid) for task in tasks for pid in task.read_text().split() if program_of(int(pid)) == program), 0)

    return wait_for(f"a {program}", look)


def is_well(machine: Machine) -> None:
    """Newcomers are served, and health reports nothing that a full machine would not."""
    machine.counter(uid=FRIENDLY).ready(AFTER_SECONDS)
    with machine.mpsd() as mpsd:
        wait_for("health", lambda: not mpsd.ask(calls.health()).problems, AFTER_SECONDS)


def steps_on(starter: Starter) -> None:
    """A member with the library counts on."""

    def steps() -> int:
        return sum(path.read_text().count('"event": "step"') for path in starter.logs.iterdir())

    before = steps()
    wait_for("the count to go on", lambda: steps() > before, AFTER_SECONDS)


def has_followed(starter: Starter, pid: int | None) -> bool:
    found = starter.service()
    return found is not None and found.phase == "serving" and found.writer_pid not in (pid, None)


def stop_mpsd(machine: Machine) -> None:
    """Clients and services continue; new clients wait; no lease and no member is lost."""
    client = machine.counter(uid=FRIENDLY).ready()
    with machine.mpsd() as mpsd:
        lease = mpsd.ask(calls.lease_create("job", Selector.of_uid(FRIENDLY + 1), sm_percent=10)).id
    with begun(machine, "--standbys", "1", command=COUNTS) as starter:
        before = starter.wait("two members", lambda it: len(it.members) == 2)
        steps_on(starter)  # until its first step the active needs mpsd
        with stopped(machine.daemon_pid()):
            newcomer = machine.counter(uid=FRIENDLY)
            steps_on(starter)
            client.goes_on()
        newcomer.ready(AFTER_SECONDS)
        client.goes_on()
        after = starter.wait("the same members", lambda it: len(it.members) == 2)
        assert (pids(after), after.writer_pid, after.generation) == (pids(before), before.writer_pid, before.generation)
        steps_on(starter)
        assert starter.end() == 0
    with machine.mpsd() as mpsd:
        assert [each.id for each in mpsd.pages(calls.lease_list())] == [lease]


def stop_keeper(machine: Machine) -> None:
    beside(machine, machine.keeper_pid())


def stop_vaults_keeper(machine: Machine) -> None:
    """The active goes on: what it publishes is in memory that it shares with the keeper."""
    with begun(machine, "--standbys", "1") as starter:
        before = starter.wait("two members", lambda it: len(it.members) == 2)
        with stopped(vault_keeper(machine)):
            machine.counter(uid=FRIENDLY).ready()
            starter.counts_on()
        after = starter.wait("the same members", lambda it: len(it.members) == 2)
        assert pids(after) == pids(before)
        starter.counts_on()
        assert starter.end() == 0


def stop_inspector(machine: Machine) -> None:
    """mpsd replaces it."""
    beside(machine, child(machine, "mpsd-inspector"))
    assert machine.journal("inspector.replaced")


def stop_vendor_daemon(machine: Machine) -> None:
    """A newcomer of the same user goes to the spare."""
    machine.counter(uid=FRIENDLY).ready()
    machine.with_spare()
    beside(machine, machine.vendor_pid("default"))


def stop_server(machine: Machine) -> None:
    machine.counter(uid=FRIENDLY).ready()
    machine.with_spare()
    [pid] = machine.servers()
    with stopped(pid):
        machine.counter(uid=FRIENDLY).ready()


def stop_starter(machine: Machine) -> None:
    """The members go on, and one that is killed has a successor; it is replaced when the starter goes on."""
    with begun(machine, "--standbys", "1") as starter:
        before = starter.wait("two members", lambda it: len(it.members) == 2)
        with stopped(starter.process.pid):
            assert before.writer_pid is not None
            os.kill(before.writer_pid, signal.SIGKILL)
            wait_for("the standby to serve", lambda: has_followed(starter, before.writer_pid), AFTER_SECONDS)
            starter.counts_on()
        starter.wait("two members", lambda it: len(it.members) == 2)
        assert len(starter.said("started")) == 3
        assert starter.end() == 0


def stop_front_end(machine: Machine) -> None:
    """In the middle of a session: others are answered, and so is its next line."""
    machine.counter(uid=FRIENDLY).ready()
    server = machine.server()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    session = subprocess.Popen([str(FRONT_END)], env=machine.variables, bufsize=0, cwd="/", **pipes)
    machine.addition(session)
    assert session.stdin is not None
    assert session.stdout is not None
    session.stdin.write(b"get_server_list\n")
    assert session.stdout.readline() == b"%d\n" % server
    with stopped(session.pid):
        session.stdin.write(b"get_server_list\n")
        assert machine.servers() == [server]
        machine.counter(uid=FRIENDLY).ready()
    assert session.stdout.readline() == b"%d\n" % server
    session.stdin.close()
    assert session.wait(AFTER_SECONDS) == 0


def beside(machine: Machine, pid: int) -> None:
    """A client that runs goes on, and newcomers are served."""
    client = machine.counter(uid=FRIENDLY).ready()
    with stopped(pid):
        machine.counter(uid=FRIENDLY).ready()
        client.goes_on()
    client.goes_on()


STOPS: tuple[Callable[[Machine], None], ...] = (
    stop_mpsd, stop_keeper, stop_vaults_keeper, stop_inspector, stop_vendor_daemon, stop_server, stop_starter,
    stop_front_end,
)  # fmt: skip


def run(stop: Callable[[Machine], None], machine: Machine) -> float:
    """How many seconds it took."""
    begin = time.monotonic()
    machine.start()
    stop(machine)
    is_well(machine)
    assert machine.quit() == 0
    return round(time.monotonic() - begin, 1)


@pytest.mark.deadline(240)
def test_no_component_that_is_stopped_for_30_seconds_harms_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSD_TEST_LOOP_MS", "10000")  # so many daemons at once wait for each other's processors
    with ExitStack() as stack:
        machines = [stack.enter_context(open_machine()) for _ in STOPS]
        with ThreadPoolExecutor(len(STOPS)) as pool:
            done = [pool.submit(run, *each) for each in zip(STOPS, machines, strict=True)]
        said = {stop.__name__: each.exception() or each.result() for stop, each in zip(STOPS, done, strict=True)}
        failures = {name: each for name, each in said.items() if isinstance(each, BaseException)}
        print(said)
        assert not failures
