"""Failovers in a row on the simulator, by faults of all kinds at random moments: never two writers, never a token lost that was
acknowledged, never more than one step computed again."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from mpsd_client import MpsdError, calls, values

from tests.integration.client import Client
from tests.integration.failovers import SERVICE, Member, Sums, Troupe
from tests.integration.machine import Machine
from tests.integration.process import is_running

pytestmark = [pytest.mark.root, pytest.mark.slow]
FAILOVERS = int(os.environ.get("MPSD_TEST_FAILOVERS", "60"))  # 200 take some minutes
PARTS = 4
CONFIGURATION = """
[faults]
quarantine = "off"
crash_pause_max = 0.0
culprit = "leave"
[services]
most_promotions = 1000
follow_grace = 2.0
"""
HEARTBEAT_SECONDS = 1.5
PLACES = ("promoted", "computed", "published")  # where a member kills itself
STARTS = ("enlisted", "context", "opened")  # and before it is of any use


class Trials:
    """One kind of fault after the other."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine, self.chance = machine, random.Random(seed)
        self.troupe = Troupe(machine, 3, HEARTBEAT_SECONDS)
        self.troupe.next_words = self.words  # type: ignore[method-assign]
        self.generation = 0
        self.innocent: Client | None = None

    def words(self) -> list[str]:
        """Kernels that end soon, and some that go on long after their process is dead; some members die by themselves."""
        kernel_ms = self.chance.choice((0.5, 3.0, 20.0, 40.0, 60.0))
        words = ["--kernel-ms", str(kernel_ms), "--pace", str(self.chance.choice((0.0, 0.002, 0.01)))]
        place = self.chance.random()
        if place < 0.12:
            words += ["--die-at", self.chance.choice(PLACES), "--die-after", str(self.chance.randrange(4))]
        elif place < 0.2:
            words += ["--die-at", self.chance.choice(STARTS)]
        return words

    def run(self, faults: list[str]) -> Sums:
        for fault in faults:
            view = self.troupe.wait_for("a service with a standby", lambda: self.troupe.serving(self.generation))
            if self.innocent is None or self.innocent.has_ended():
                self.innocent = self.machine.counter()  # for its sake mpsd holds what dead neighbours run
            self.troupe.listen(self.chance.uniform(0, 0.05))
            self.generation = view.generation
            getattr(self, fault)(view)
            self.troupe.wait_for(f"another term after {fault}", lambda: self.troupe.serving(self.generation, is_covered=False))
        self.troupe.end()
        return self.troupe.check()

    def active(self, view: values.Service) -> Member:
        """Who serves; or one that served just now."""
        return self.troupe.of(view.writer_pid) or self.troupe.members[-1]

    # -- faults --------------------------------------------------------------------------------------------------------

    def own_trap(self, view: values.Service) -> None:
        self.active(view).tell("trap")

    def own_out_of_bounds(self, view: values.Service) -> None:
        self.active(view).tell("oob_write")

    def co_runners_trap(self, view: values.Service) -> None:
        self.co_runner(view, "trap")

    def co_runners_out_of_bounds(self, view: values.Service) -> None:
        self.co_runner(view, "oob_write")

    def active_killed(self, view: values.Service) -> None:
        self.active(view).kill()

    def standby_killed_then_active(self, view: values.Service) -> None:
        for member in self.troupe.standbys(view)[:1]:
            member.kill()
        self.active(view).kill()

    def starting_standby_killed(self, view: values.Service) -> None:
        member = self.troupe.start(*self.words())
        self.troupe.listen(self.chance.uniform(0, 0.3))
        member.kill()
        self.active(view).kill()

    def next_killed_in_promotion(self, view: values.Service) -> None:
        """Return as soon as its term shows a sign of life."""
        self.active(view).kill()
        generation = view.generation
        after = self.troupe.wait_for("a promotion", lambda: self.beyond(generation))
        if (member := self.troupe.of(after.writer_pid)) is not None:
            member.kill()

    def next_killed_while_the_one_before_is_fenced(self, view: values.Service) -> None:
        standbys = self.troupe.standbys(view)
        self.active(view).kill()
        time.sleep(self.chance.uniform(0, 0.004))
        for member in standbys:
            member.kill()

    def server_killed(self, view: values.Service) -> None:
        domain = next((each.domain for each in view.members if each.is_writer), "")
        for pid in self.machine.servers():
            if self.machine.domain_of_server(pid) == domain:
                os.kill(pid, signal.SIGKILL)

    def mpsd_killed_and_active_too(self, view: values.Service) -> None:
        self.machine.kill_daemon()
        self.active(view).kill()
        self.machine.start()

    def mpsd_killed_and_active_stopped(self, view: values.Service) -> None:
        self.machine.kill_daemon()
        self.active(view).kill(signal.SIGSTOP)
        self.machine.start()

    def mpsd_killed_in_failover(self, view: values.Service) -> None:
        self.active(view).kill()
        time.sleep(self.chance.uniform(0, 0.02))
        self.machine.kill_daemon()
        self.machine.start()

    def handed_over(self, view: values.Service) -> None:
        try:
            with self.machine.mpsd() as mpsd:
                mpsd.ask(calls.service_handover(SERVICE, wait_seconds=0.0))
        except MpsdError:  # the wait ended before the event, or all members have ended; in that case:
            view = self.troupe.view() or view
            if view.phase == "serving" and view.generation == self.generation:
                self.active(view).kill()

    def stopped(self, view: values.Service) -> None:
        self.active(view).kill(signal.SIGSTOP)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def beyond(self, generation: int) -> values.Service | None:
        view = self.troupe.view()
        return view if view is not None and view.generation > generation else None

    def co_runner(self, view: values.Service, mode: str) -> None:
        """A stranger in the domain of the one that serves."""
        domain = next((each.domain for each in view.members if each.is_writer), "")
        pipe = self.machine.state / "domains" / domain / "pipe"
        stranger: Client = self.machine.client("faulter", mode, CUDA_MPS_PIPE_DIRECTORY=str(pipe))
        self.troupe.wait_for("the end of a stranger", stranger.has_ended)


FAULTS = sorted(
    name for name, found in vars(Trials).items()
    if isinstance(found, Callable) and "view" in getattr(found, "__annotations__", {}) and name not in ("active", "co_runner")
)  # fmt: skip


NO_FENCE = """
import runpy
import sys

import mpsd.services.fencing as fencing
import mpsd.vault.fencing as holders

def fence(self, record, writer):
    self._coordinator.process_watch.kill(writer)
    self._coordinator.fenced(record, writer)

fencing.Fencing.fence = fence
holders.ArenaHolders.hurry = lambda self, process: None
sys.argv = sys.argv[3:]  # without -I -m mpsd
runpy.run_module("mpsd", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def machine_of_services(machine: Machine) -> Iterator[Machine]:
    machine.configure(CONFIGURATION)
    machine.start()
    yield machine
    machine.kill_all_daemons()


@pytest.mark.deadline(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_there_are_never_two_writers_and_nothing_is_lost(machine_of_services: Machine, part: int) -> None:
    chance = random.Random(700 + part)
    many = -(-FAILOVERS // PARTS)
    faults = (FAULTS * (many // len(FAULTS) + 1))[: many // len(FAULTS) * len(FAULTS)] or []
    faults += chance.sample(FAULTS, many - len(faults))
    chance.shuffle(faults)
    trials = Trials(machine_of_services, 700 + part)
    try:
        sums = trials.run(faults)
    finally:
        for member in trials.troupe.living:
            member.kill()
    print(f"part {part}: {many} failovers, {sums}")
    assert sums.terms > many
    assert not machine_of_services.bugs()
    assert not [member for member in trials.troupe.members if is_running(member.pid)]


def test_a_fence_that_is_cut_out_is_seen(machine: Machine) -> None:
    """So that the test above can fail: mpsd promotes when the one before was sent SIGKILL, though its kernel runs on, as mpsd
    holds what it needs, for the sake of another in its domain."""
    machine.configure(CONFIGURATION)
    program, python = machine.place / "unfenced.py", machine.place / "python"
    program.write_text(NO_FENCE)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    machine.start(MPSD_PYTHON=str(python))
    troupe = Troupe(machine, 2, 0.0)
    troupe.is_filled = False
    try:
        troupe.start("--kernel-ms", "1000")
        troupe.wait_for("the first to serve", lambda: troupe.serving(0, is_covered=False))
        troupe.is_filled = True
        view = troupe.wait_for("a standby", lambda: troupe.serving(0))
        active = troupe.of(view.writer_pid)
        assert active is not None
        innocent = machine.counter().ready()
        assert machine.domain_of(innocent) == next(each.domain for each in view.members if each.is_writer)
        before = len(active.said("step"))
        troupe.wait_for("a step", lambda: len(active.said("step")) > before)
        troupe.listen(0.1)  # into the next one
        active.kill()
        with pytest.raises(AssertionError, match='"event": "conflict"'):
            troupe.wait_for("nothing", lambda: False)
    finally:
        troupe.end()
