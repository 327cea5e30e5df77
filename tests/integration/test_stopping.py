"""Ending clients in the middle of a kernel: with client.stop their co-runners go on, with a plain signal they die."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mpsd_client import Refused, calls, values

from mpsd.domains.store import SqliteStore
from mpsd.host.cgroup_directory import CgroupDirectory
from mpsd.stop.freezer import CgroupFreezer, LeftFrozen
from tests.inspecting import INSPECTOR
from tests.integration.client import Client
from tests.integration.machine import UIDS, Machine
from tests.integration.process import is_running, state_of, wait_for

pytestmark = pytest.mark.root
DRAIN = (
    "import sys; from mpsd_client import Client, calls;"
    "Client(sys.argv[1]).ask(calls.client_stop({}, way='drain', drain_seconds=600))"
)
QUICK = "[vendor]\ncommand_seconds = 0.5\nstop_seconds = 1.0\n"


def in_an_endless_kernel(machine: Machine) -> Client:
    """Its process stays when its GPU work has been ended."""
    client = machine.client("faulter", "hang", "--linger", "600")
    client.wait("fault")
    machine.server_of(client)
    return client


def only(done: values.Stopped) -> values.StoppedProcess:
    assert (done.count, done.others, len(done.processes)) == (1, 0, 1)
    return done.processes[0]


@contextmanager
def held(pid: int) -> Iterator[None]:
    """A vendor daemon that does not answer."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # its domain was restarted meanwhile
            os.kill(pid, signal.SIGCONT)


def put(client: Client, directory: Path) -> None:
    (directory / "cgroup.procs").write_text(str(client.pid))


@pytest.mark.slow
def test_a_plain_kill_takes_the_co_runner_along(machine: Machine) -> None:
    """So that the tests below can fail."""
    machine.start()
    other = machine.counter().ready()
    doomed = in_an_endless_kernel(machine)
    other.goes_on()  # its kernel has been running for a while
    doomed.end(signal.SIGKILL)
    assert other.error() == 700


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        ({}, ["terminate", "sigkill"]),
        ({"grace_seconds": 600}, ["terminate", "sigterm"]),
        ({"way": "drain", "drain_seconds": 0.1}, ["freeze", "drain", "thaw", "terminate", "sigkill"]),
        ({"way": "drain", "drain_seconds": 0.1, "grace_seconds": 600},
         ["freeze", "drain", "thaw", "terminate", "sigterm"]),
    ],
    ids=["terminate", "with grace", "drain", "drain with grace"],
)  # fmt: skip
def test_a_stopped_client_does_not_take_its_co_runner_along(shared: Machine, how: dict[str, object], steps: list[str]) -> None:
    other = shared.counter().ready()
    doomed = in_an_endless_kernel(shared)
    assert shared.domain_of(other) == shared.domain_of(doomed)
    with shared.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(doomed.pid, **how)))  # type: ignore[arg-type]
    assert (done.pid, done.has_ended, done.why, list(done.steps)) == (doomed.pid, True, None, steps)
    assert doomed.status() == (-signal.SIGTERM if "sigterm" in steps else -signal.SIGKILL)
    other.goes_on()
    other.goes_on()
    assert not other.events("error")


def test_it_is_logged_and_audited(machine: Machine) -> None:
    machine.start()
    doomed = in_an_endless_kernel(machine)
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.client_stop(doomed.pid))
    wait_for("both lines of mpsd.log", lambda: len(machine.journal("client.stop")) >= 2)  # written by a separate thread
    assert [event["step"] for event in machine.journal("client.stop")] == ["terminate", "sigkill"]
    wait_for("a whole line of audit.log", lambda: "".join(machine.log("audit.log")).endswith("}"))
    [line] = map(json.loads, machine.log("audit.log"))
    assert (line["method"], line["outcome"]) == ("client.stop", f"done: {doomed.pid} ended")


def test_the_clients_of_a_cgroup_end_and_nobody_else(machine: Machine, cgroup: Path) -> None:
    """A launcher in the cgroup is no client; mpsd leaves it running."""
    machine.start()
    other = machine.counter().ready()
    doomed = [in_an_endless_kernel(machine) for _ in range(2)]
    for client in doomed:
        put(client, cgroup)
    launcher = subprocess.Popen(["sleep", "600"])
    (cgroup / "cgroup.procs").write_text(str(launcher.pid))
    with machine.mpsd() as mpsd:
        done = mpsd.ask(calls.client_stop(cgroup=f"/{cgroup.name}"))
        assert {each.pid for each in done.processes if each.has_ended} == {client.pid for client in doomed}
        assert mpsd.ask(calls.client_stop(cgroup=cgroup.name)).count == 0
    other.goes_on()
    assert launcher.poll() is None
    launcher.kill()
    launcher.wait()


def test_a_cgroup_is_frozen_as_a_whole_while_it_drains(machine: Machine, cgroup: Path) -> None:
    """And set going when it is over."""
    machine.start()
    other = machine.counter().ready()
    doomed = in_an_endless_kernel(machine)
    put(doomed, cgroup)
    bystander = subprocess.Popen(["sleep", "600"])
    (cgroup / "cgroup.procs").write_text(str(bystander.pid))
    with machine.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(cgroup=cgroup.name, way="drain", drain_seconds=0.2)))
    assert list(done.steps) == ["freeze", "drain", "thaw", "terminate", "sigkill"]
    wait_for("a line of mpsd.log", lambda: machine.journal("cgroup.frozen"))
    assert [event["cgroup"] for event in machine.journal("cgroup.frozen")] == [str(cgroup)]
    assert (cgroup / "cgroup.freeze").read_text().strip() == "0"
    other.goes_on()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_ones_own_cgroup_is_known_to_mpsd(shared: Machine, cgroup: Path) -> None:
    """As a hook inside of a container asks, which cannot know what the container is called."""
    other = shared.counter().ready()
    doomed = in_an_endless_kernel(shared)
    put(doomed, cgroup)
    script = "import sys; from mpsd_client import Client, calls; c = Client(sys.argv[1]); sys.stdin.readline()\n"
    script += "print(c.ask(calls.client_stop(cgroup='self')).count)"
    asking = subprocess.Popen(
        [shared.variables["MPSD_PYTHON"], "-c", script, str(shared.pipe / "mpsd.sock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    (cgroup / "cgroup.procs").write_text(str(asking.pid))
    assert asking.communicate(b"now\n", timeout=20)[0] == b"1\n"
    assert doomed.status() == -signal.SIGKILL
    other.goes_on()


@pytest.fixture
def busy(cgroup: Path) -> Iterator[int]:
    """A process in the cgroup that never waits."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    yield process.pid
    process.kill()
    process.wait()


def test_a_client_that_somebody_has_stopped_is_continued_first(shared: Machine) -> None:
    """The vendor's daemon would answer no command while it ends the work of a stopped process (measured on an H200)."""
    other = shared.counter().ready()
    doomed = in_an_endless_kernel(shared)
    os.kill(doomed.pid, signal.SIGSTOP)
    wait_for("the client to stop", lambda: state_of(doomed.pid) == "T")
    with shared.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(doomed.pid)))
    assert (done.has_ended, list(done.steps)) == (True, ["thaw", "terminate", "sigkill"])
    other.goes_on()


async def test_the_freezer_freezes_and_thaws(cgroup: Path, busy: int, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "mpsd.db")
    left, directory = LeftFrozen(INSPECTOR, store), CgroupDirectory(cgroup, 0, INSPECTOR)
    freezer = CgroupFreezer(directory, left)
    assert await freezer.pids() == {busy}
    assert await freezer.freeze()
    assert not await CgroupFreezer(directory, left).freeze()  # another freezer has frozen it already
    assert (cgroup / "cgroup.freeze").read_text().strip() == "1"
    assert await freezer.thaw()
    assert (cgroup / "cgroup.freeze").read_text().strip() == "0"
    store.close()


@pytest.mark.parametrize("is_whole", [False, True], ids=["by pid", "by cgroup"])
def test_what_mpsd_froze_before_kill_9_goes_on_after_its_restart(machine: Machine, cgroup: Path, is_whole: bool) -> None:
    machine.start()
    drained, held = machine.counter().ready(), machine.counter().ready()
    for client in (drained, held):
        machine.server_of(client)
    put(drained, cgroup)
    target = f"cgroup='{cgroup.name}'" if is_whole else str(drained.pid)
    asking = subprocess.Popen(
        [machine.variables["MPSD_PYTHON"], "-c", DRAIN.format(target), str(machine.pipe / "mpsd.sock")],
        stderr=subprocess.DEVNULL,
    )
    wait_for("the first step", lambda: [line["step"] for line in machine.journal("client.stop")] == ["freeze"])
    assert (cgroup / "cgroup.freeze").read_text().strip() == f"{is_whole:d}"
    os.kill(held.pid, signal.SIGSTOP)
    machine.kill_daemon()
    asking.wait()
    machine.start()
    assert (cgroup / "cgroup.freeze").read_text().strip() == "0"
    drained.goes_on()
    assert state_of(held.pid) == "T"
    os.kill(held.pid, signal.SIGCONT)
    held.goes_on()


def test_another_users_client_is_not_there(machine: Machine, cgroup: Path) -> None:
    machine.start()
    client = machine.counter(uid=UIDS[0]).ready()
    machine.server_of(client)
    put(client, cgroup)
    with machine.mpsd(UIDS[1]) as stranger:
        with pytest.raises(Refused) as refused:
            stranger.ask(calls.client_stop(client.pid))
        assert refused.value.name == "NO_SUCH_CLIENT"
        done = stranger.ask(calls.client_stop(cgroup=cgroup.name))
        assert (done.count, done.others, done.processes) == (0, 1, ())
    client.goes_on()
    with machine.mpsd(UIDS[0]) as owner:
        assert only(owner.ask(calls.client_stop(client.pid))).has_ended


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"way": "drain", "drain_seconds": 0.1}], ids=["terminate", "drain"])
def test_a_client_of_a_silent_domain_is_not_killed_but_by_force(machine: Machine, how: dict[str, object]) -> None:
    machine.configure(QUICK)
    machine.start()
    doomed = in_an_endless_kernel(machine)
    with machine.mpsd() as mpsd, held(machine.vendor_pid(machine.domain_of(doomed))):
        done = only(mpsd.ask(calls.client_stop(doomed.pid, **how)))  # type: ignore[arg-type]
        assert (done.has_ended, "sigkill" in done.steps) == (False, False)
        assert "was not ended" in str(done.why)
        assert is_running(doomed.pid)
        wait_for("it to run again", lambda: state_of(doomed.pid) not in "tT")
        done = only(mpsd.ask(calls.client_stop(doomed.pid, force=True)))
        assert (done.has_ended, list(done.steps)) == (True, ["sigkill"])
    assert doomed.status() == -signal.SIGKILL


def test_a_process_that_is_no_client_is_simply_ended(shared: Machine) -> None:
    process = subprocess.Popen(["sleep", "600"])
    with shared.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(process.pid)))
    assert (done.domain, list(done.steps), done.has_ended) == (None, ["sigkill"], True)
    assert process.wait() == -signal.SIGKILL


def test_what_clients_need_is_not_ended(shared: Machine) -> None:
    client = shared.counter().ready()
    server = shared.server_of(client)
    needed = [shared.daemon_pid(), shared.keeper_pid(), shared.vendor_pid(shared.domain_of(client)), server, 1]
    with shared.mpsd() as mpsd:
        for pid in needed:
            with pytest.raises(Refused) as refused:
                mpsd.ask(calls.client_stop(pid))
            assert refused.value.name == "BAD_REQUEST"
    client.goes_on()


@pytest.mark.slow
def test_a_grace_is_no_longer_than_it_was_to_be(machine: Machine) -> None:
    """For one that does not heed SIGTERM."""
    machine.start()
    script = "import signal, sys; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    begun = time.monotonic()
    with machine.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(process.pid, grace_seconds=0.5)))
    assert time.monotonic() - begun >= 0.5
    assert (list(done.steps), done.has_ended) == (["sigterm", "sigkill"], True)
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL


def test_a_client_that_waits_for_its_turn_is_one_of_its_cgroup(machine: Machine, cgroup: Path) -> None:
    """The client has no GPU work that could be ended, and would run after the others."""
    machine.configure("[domains]\nspares = 0\nmax_domains = 1\n")
    machine.start()
    other = machine.counter().ready()
    waiting = machine.counter(uid=UIDS[0])
    machine.wait_for_journal("client.waiting")
    put(waiting, cgroup)
    with machine.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(cgroup=cgroup.name)))
    assert (done.pid, list(done.steps), done.has_ended) == (waiting.pid, ["sigkill"], True)
    other.goes_on()


def test_without_root_mpsd_stops_its_own_users_clients(strangers: Machine) -> None:
    strangers.start()
    other = strangers.counter().ready()
    doomed = in_an_endless_kernel(strangers)
    with strangers.mpsd(strangers.uid) as mpsd:
        done = only(mpsd.ask(calls.client_stop(doomed.pid)))
    assert (done.has_ended, list(done.steps)) == (True, ["terminate", "sigkill"])
    other.goes_on()


def test_without_root_nobody_elses_process_can_be_stopped(strangers: Machine) -> None:
    """An operator may ask; the kernel does not let mpsd."""
    strangers.start()
    process = subprocess.Popen(["sleep", "600"])
    with strangers.mpsd() as mpsd:
        done = only(mpsd.ask(calls.client_stop(process.pid)))
    assert (done.has_ended, done.why) == (False, "mpsd may not send it SIGKILL: Operation not permitted")
    assert process.poll() is None
    process.kill()
    process.wait()
