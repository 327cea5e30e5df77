"""Bad days in random order: ten clients run, others arrive, and something is killed, stopped, filled, truncated or flooded.

After each round every client that docs/operating.md does not name as hurt counts on, each newcomer runs, no lease is missing,
and `health` was never "ok" while a newcomer hung.  At the end no descriptor and no process is left.

    MPSD_TEST_ROUNDS=100 MPSD_TEST_SEED=N pytest -m slow tests/hostile/test_random_days.py -s
"""

import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mpsd_client import Disconnected, MpsdError, Selector, calls

from tests.hostile.test_connection_floods import storm
from tests.hostile.test_full_disk import fill, leave_mount_namespace
from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import state_of, stop_idle, wait_for
from tests.seeds import RUN_SEED

ROUNDS = int(os.environ.get("MPSD_TEST_ROUNDS", "14"))
USERS = (1000, 1001, 1002)
CLIENTS = 10
STATE_BYTES = "24m"
STOP_SECONDS = 1.5
COPY_SECONDS = 3.0  # mpsd copies its databases once a second
LAST_EVENTS = 60  # of mpsd's log, shown after a failure
HANG_SECONDS = 10.0  # a newcomer that has not begun by then hangs, and health has to report it
START_SECONDS = 60.0  # for a newcomer whose obstacle has gone; 0.1 to 2 on an idle machine
HEALTH_SECONDS = 0.1  # half of the answers; a machine with two processors and all of this running delays some
CONFIG = "[domains]\nidle_seconds = 1.0\n"


class HealthWatch(threading.Thread):
    """Asks for health every 50 ms over a separate connection. problems: of the last answer; None: mpsd did not answer."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(name="health", daemon=True)
        self._machine = machine
        self._is_over = threading.Event()
        self._excuses = [False]  # whether mpsd itself is stopped or killed; an entry for each change
        self.problems: tuple[str, ...] | None = None
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            with suppress(OSError, Disconnected, MpsdError), self._machine.mpsd() as mpsd:
                while not self._is_over.wait(0.05):
                    changes, began = len(self._excuses), time.monotonic()
                    answer = mpsd.ask(calls.health())
                    if changes == len(self._excuses) and not self._excuses[-1]:
                        self.seconds.append(time.monotonic() - began)
                    self.problems = tuple(answer.problems)
            self.problems = None
            self._is_over.wait(0.05)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Do not count the answers that mpsd could not give meanwhile, even if one was asked for before and came afterwards."""
        self._excuses.append(True)
        yield
        self._excuses.append(False)

    def end(self) -> None:
        self._is_over.set()
        self.join(10.0)


@dataclass
class Days:
    """Guards what is known of each client: the domain that it was in when it was last asked for."""

    machine: Machine
    chance: random.Random
    health: HealthWatch
    clients: list[Client] = field(default_factory=list)
    newcomers: list[Client] = field(default_factory=list)
    outdated: list[Client] = field(default_factory=list)  # docs/operating.md advises to let them end
    leases: set[int] = field(default_factory=set)

    # -- what happens --------------------------------------------------------------------------------------------------------

    @contextmanager
    def mpsd_is_killed(self) -> Iterator[None]:
        with self.health.excused():
            self.machine.kill_daemon()
            self._arrive()
            self.machine.start()
        yield

    @contextmanager
    def mpsd_is_stopped(self) -> Iterator[None]:
        pid = self.machine.daemon_pid()
        with self.health.excused():
            stop_idle(pid)
            self._arrive()
            time.sleep(STOP_SECONDS)
            os.kill(pid, signal.SIGCONT)
        yield

    @contextmanager
    def the_database_is_truncated(self) -> Iterator[None]:
        with self.health.excused():
            self.machine.kill_daemon()
            for path in self.machine.state.glob("mpsd.db-*"):
                path.unlink()
            (self.machine.state / "mpsd.db").write_bytes(b"")
            self.machine.start()
        self.outdated += self.clients
        yield

    @contextmanager
    def the_state_directory_is_emptied(self) -> Iterator[None]:
        """Its clients go on in domains that cannot be reached any more; mpsd is started again soon."""
        made = len(self.machine.journal("state_directory.made_again"))
        for path in self.machine.state.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        wait_for("the directory", lambda: len(self.machine.journal("state_directory.made_again")) > made, START_SECONDS)
        yield
        time.sleep(COPY_SECONDS)
        with self.health.excused():
            self.machine.kill_daemon()
            self.machine.start()

    @contextmanager
    def the_keeper_is_killed(self) -> Iterator[None]:
        before = self.machine.keeper_pid()
        os.kill(before, signal.SIGKILL)
        wait_for("another keeper", lambda: self.machine.keeper_pid() not in (0, before), START_SECONDS)
        yield

    @contextmanager
    def the_keeper_is_stopped(self) -> Iterator[None]:
        with _stopped(self.machine.keeper_pid()):
            yield

    @contextmanager
    def a_vendor_daemon_is_killed(self) -> Iterator[None]:
        domain = self._a_domain()
        self._forget_clients_of(domain)
        self.machine.kill_vendor(domain)
        yield

    @contextmanager
    def a_vendor_daemon_is_stopped(self) -> Iterator[None]:
        with _stopped(self.machine.vendor_pid(self._a_domain())):
            yield

    @contextmanager
    def a_vendor_server_is_killed(self) -> Iterator[None]:
        server = self.chance.choice(self.machine.servers())
        self._forget_clients_of(self.machine.domain_of_server(server))
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        yield

    @contextmanager
    def a_vendor_server_is_stopped(self) -> Iterator[None]:
        with _stopped(self.chance.choice(self.machine.servers())):
            yield

    @contextmanager
    def clients_are_killed(self) -> Iterator[None]:
        for client in self.chance.sample(self.clients, 3):
            self.clients.remove(client)
            client.end(signal.SIGKILL)
        yield

    @contextmanager
    def the_disk_is_full(self) -> Iterator[None]:
        filled = fill(self.machine.state)
        try:
            yield
        finally:
            filled.unlink()

    @contextmanager
    def logs_are_truncated(self) -> Iterator[None]:
        logs = [self.machine.log_directory / "control.log", self.machine.log_directory / "server.log"]
        for path in (*logs, *self.machine.state.glob("domains/*/log/*.log")):
            with suppress(FileNotFoundError):
                os.truncate(path, 0)
        yield

    @contextmanager
    def a_door_is_flooded(self) -> Iterator[None]:
        door, what = self.chance.choice(("control", "mpsd.sock", "mpsd-ui")), self.chance.choice(("nothing", "words"))
        with storm(self.machine, door, what):
            yield

    # -- a round -------------------------------------------------------------------------------------------------------------

    def round(self, happening: "Happening") -> None:
        with happening(self):
            self._arrive()
            for newcomer in self.newcomers:
                self._must_not_hang_unseen(newcomer)
            self._use_leases()
        for client in self.clients:
            client.goes_on(START_SECONDS)
        for client in [each for each in self.clients if each in self.outdated]:
            self.clients.remove(client)
            client.end(signal.SIGKILL)
        self.outdated.clear()
        for newcomer in self.newcomers:
            newcomer.ready(START_SECONDS)
        self._check_leases()
        self.clients += self.newcomers
        self.newcomers.clear()
        while len(self.clients) > CLIENTS:
            self.clients.pop(self.chance.randrange(len(self.clients))).end(signal.SIGKILL)
        while len(self.clients) < CLIENTS:
            self.clients.append(self.machine.counter(uid=self.chance.choice(USERS)).ready(START_SECONDS))

    def _arrive(self) -> None:
        self.newcomers.append(self.machine.counter(uid=self.chance.choice(USERS)))

    def _must_not_hang_unseen(self, newcomer: Client) -> None:
        """Wait until it runs or, after HANG_SECONDS, until health or the queue reports why it does not."""
        until = time.monotonic() + HANG_SECONDS
        while newcomer.is_silent():
            if time.monotonic() > until:
                problems = self.health.problems
                reasons = self._reasons_of(newcomer)
                assert problems is None or problems or reasons, f"pid {newcomer.pid} hangs, and health and the queue are silent"
                print(f"    pid {newcomer.pid} waits: health {problems}, queue {reasons}")
                return
            time.sleep(0.01)
        newcomer.ready()

    def _reasons_of(self, newcomer: Client) -> list[str]:
        with self.machine.mpsd() as mpsd:
            return [each.reason for each in mpsd.ask(calls.queue_list()).items if each.pid == newcomer.pid and each.reason]

    def _use_leases(self) -> None:
        """One that is made stays, one that was made goes; a refusal, or no answer, changes nothing that is certain."""
        with suppress(MpsdError, Disconnected, OSError), self.machine.mpsd() as mpsd:
            made = mpsd.ask(calls.lease_create("day", Selector.of_token("day"), sm_percent=1))
            self.leases.add(made.id)
            if len(self.leases) > CLIENTS:
                mpsd.ask(calls.lease_release(min(self.leases)))
                self.leases.remove(min(self.leases))

    def _check_leases(self) -> None:
        with self.machine.mpsd() as mpsd:
            found = {lease.id for lease in mpsd.pages(calls.lease_list())}
        assert self.leases <= found, f"leases {sorted(self.leases - found)} are lost"

    def _a_domain(self) -> str:
        return self.machine.domain_of_server(self.chance.choice(self.machine.servers()))

    def _forget_clients_of(self, domain: str) -> None:
        """They are hurt, as docs/operating.md describes: they may end or continue."""
        with self.machine.mpsd() as mpsd:
            hurt = {client.pid for client in mpsd.pages(calls.client_list()) if client.domain == domain}
        for client in [each for each in self.clients if each.pid in hurt]:
            self.clients.remove(client)
            client.end(signal.SIGKILL)


Happening = Callable[[Days], AbstractContextManager[None]]
HAPPENINGS: tuple[Happening, ...] = (
    Days.mpsd_is_killed, Days.mpsd_is_stopped, Days.the_database_is_truncated, Days.the_state_directory_is_emptied,
    Days.the_keeper_is_killed,
    Days.the_keeper_is_stopped, Days.a_vendor_daemon_is_killed, Days.a_vendor_daemon_is_stopped, Days.a_vendor_server_is_killed,
    Days.a_vendor_server_is_stopped, Days.clients_are_killed, Days.the_disk_is_full, Days.logs_are_truncated,
    Days.a_door_is_flooded,
)  # fmt: skip


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        wait_for(f"pid {pid} to stop", lambda: state_of(pid) in "TXZ")
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _descriptors(machine: Machine) -> Counter[str]:
    """Count those of mpsd by kind: files by name, sockets, pipes; and those of a domain together.

    Without its logs: each is opened for its first line, and stays open.
    """
    found: Counter[str] = Counter()
    pid = machine.daemon_pid()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = os.readlink(link).replace(f"/proc/{pid}/task/{pid}/", "/proc/self/task/self/")
            target = re.sub(r"/proc/\d+/status", "the status of a reader", target)
            if target.startswith(f"{machine.log_directory}/"):
                continue
            kind, _, number = target.partition(":[")
            is_file = target.startswith("/") or not number
            found["of a domain" if "/domains/" in target else target if is_file else kind] += 1
    return found


@pytest.fixture
def small(machine: Machine) -> Iterator[Machine]:
    """Make a machine whose state is on a small file system, which can be filled."""
    leave_mount_namespace()
    machine.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STATE_BYTES},mode=711", "none", machine.state], check=True)
    machine.configure(CONFIG)
    yield machine
    machine.end_children()
    machine.end_processes()
    subprocess.run(["umount", "-l", machine.state], check=True)


@pytest.mark.deadline(120 + 30 * ROUNDS)
def test_random_days(small: Machine) -> None:
    small.start()
    wait_for("a calm mpsd", lambda: small.tell("get_server_list") == "")
    before = _descriptors(small) + Counter(socket=1)  # the reader of cgroups begins with a client of an earlier mpsd
    health = HealthWatch(small)
    health.start()
    days = Days(small, random.Random(RUN_SEED), health)
    coming: list[Happening] = []
    try:
        days.clients += [small.counter(uid=USERS[number % len(USERS)]) for number in range(CLIENTS)]
        for client in days.clients:
            client.ready(START_SECONDS)
        for number in range(ROUNDS):
            began = time.monotonic()
            if not coming:
                coming = days.chance.sample(HAPPENINGS, len(HAPPENINGS))  # each comes as often as any other
            happening = coming.pop()
            print(f"round {number + 1}: {happening.__name__}", end="", flush=True)
            days.round(happening)
            print(f", {time.monotonic() - began:.1f} s", flush=True)
    except AssertionError:
        print("", *small.journal()[-LAST_EVENTS:], sep="\n")
        raise
    finally:
        health.end()
    print(f"health: {len(health.seconds)} answers, median {statistics.median(health.seconds) * 1e3:.1f} ms, "
          f"99 % {sorted(health.seconds)[len(health.seconds) * 99 // 100] * 1e3:.0f} ms, "
          f"longest {max(health.seconds) * 1e3:.0f} ms")  # fmt: skip
    assert statistics.median(health.seconds) < HEALTH_SECONDS
    small.end_children()
    until = time.monotonic() + START_SECONDS
    while (more := _descriptors(small) - before) and time.monotonic() < until:
        time.sleep(0.2)
    print(f"descriptors: {sum(before.values())} at the start, {sum(_descriptors(small).values())} at the end")
    assert not more, f"mpsd has more descriptors than at its start: {dict(more)}"
    assert small.quit() == 0
    wait_for("the end of all processes", lambda: not small.processes(), START_SECONDS)
