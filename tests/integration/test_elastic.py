"""Elastic shares, with the real daemon and starters: one interactive service and two batch ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from mpsd_client import Disconnected, Refused, calls, values

from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.deadline(300)]
MEMBER = Path(__file__).with_name("elastic_member.py")
LEVELS = {"chat": "interactive", "batch-a": "batch", "batch-b": "batch"}
SHARE = 33.0
STEP_PERCENT = 2.5  # a client has whole pairs of SMs
MOVE_SECONDS = 60.0
END_SECONDS = 60.0
CONFIG = "[services]\nmost_promotions = 1000\n[admission]\nmove_cost_seconds = 1.0\nsm_oversubscription = "


class Pool:
    """Three services and their starters."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.starters: dict[str, subprocess.Popen[bytes]] = {}

    def load(self, name: str, busy: float) -> None:
        new = self.machine.place / f"{name}.new"
        new.write_text(str(busy))
        new.replace(self._file(name, "load"))

    def start(self, name: str) -> None:
        member = [sys.executable, str(MEMBER), name, str(self._file(name, "report")), str(self._file(name, "load"))]
        words = ["--standbys", "0", "--sm", f"{SHARE:g}%", "--elastic", LEVELS[name]]
        with self._file(name, "starter").open("ab") as file:
            self.starters[name] = subprocess.Popen(
                [sys.executable, "-m", "mpsctl", "service", "run", name, *words, "--", *member],
                env=self.machine.variables, stdout=file, stderr=file,
            )  # fmt: skip

    def kill_starter(self, name: str) -> None:
        """Its members go on."""
        starter = self.starters.pop(name)
        starter.kill()
        starter.wait()

    def end(self) -> None:
        for starter in self.starters.values():
            starter.terminate()
        assert [starter.wait(END_SECONDS) for starter in self.starters.values()] == [0] * len(self.starters)

    def services(self) -> dict[str, values.Service]:
        """None while mpsd is away."""
        try:
            with self.machine.mpsd() as mpsd:
                return {each.name: each for each in mpsd.pages(calls.service_list())}
        except (OSError, Disconnected, Refused):
            return {}

    def dealt(self) -> dict[str, float]:
        return {name: each.share.sm_percent for name, each in self.services().items() if each.share is not None}

    def moves(self) -> int:
        return sum(each.share.moves for each in self.services().values() if each.share)

    def wait_for_deal(self, chat: float) -> None:
        """Until mpsd has dealt the interactive service about so much; no starter need have carried it out."""
        wait_for(f"a deal of {chat:g} %", lambda: abs(self.dealt().get("chat", 0.0) - chat) < 1.0, MOVE_SECONDS)

    def wait_until_settled(self) -> dict[str, float]:
        """Until each service has one member, which serves with the share that was dealt."""

        def look() -> dict[str, float]:
            found = self.services()
            with self.machine.mpsd() as mpsd:
                has = {each.pid: each.sm_percent for each in mpsd.pages(calls.client_list())}
            shares = {name: each.share.sm_percent for name, each in found.items() if each.share}
            is_so = [
                len(each.members) == 1
                and each.phase == "serving"
                and abs((has.get(each.writer_pid or 0) or 0.0) - shares[name]) < STEP_PERCENT
                for name, each in found.items()
                if name in shares
            ]
            return shares if len(is_so) == len(LEVELS) and all(is_so) else {}

        def look_or_not() -> dict[str, float]:
            try:
                return look()
            except (OSError, Disconnected, Refused):
                return {}

        return wait_for("each service to have its share", look_or_not, MOVE_SECONDS)

    def steps(self, name: str) -> list[int]:
        file = self._file(name, "report")
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [int(line) for line in lines if line.endswith("\n")]

    def wait_for_steps(self, name: str, more: int) -> None:
        before = len(self.steps(name))
        wait_for(f"{more} more steps of {name}", lambda: len(self.steps(name)) >= before + more, MOVE_SECONDS)

    def check(self) -> None:
        """Nothing was lost: no step is missing, and one that was done twice had not been published when its active died."""
        for name in LEVELS:
            steps = self.steps(name)
            assert steps
            assert steps[0] == 1
            assert {after - before for before, after in pairwise(steps)} <= {0, 1}

    def starter_output(self, name: str) -> str:
        return self._file(name, "starter").read_text()

    def _file(self, name: str, kind: str) -> Path:
        return self.machine.place / f"{name}.{kind}"


@contextmanager
def begun(machine: Machine, chat: float, oversubscription: float = 3.0) -> Iterator[Pool]:
    machine.configure(f"{CONFIG}{oversubscription:g}\n")
    machine.start()
    pool = Pool(machine)
    try:
        for name in LEVELS:
            pool.load(name, chat if name == "chat" else 1.0)
            pool.start(name)
        yield pool
        pool.check()
    finally:
        for name, starter in pool.starters.items():
            starter.kill()
            starter.wait()
            print(name, pool.starter_output(name))  # shown where the test fails
        print({name: each.share for name, each in pool.services().items()})


def test_need_shifts_and_shares_follow(machine: Machine) -> None:
    with begun(machine, 0.1) as pool:
        pool.wait_for_deal(SHARE / 2)
        quiet = pool.wait_until_settled()
        assert quiet == {"chat": 16.5, "batch-a": 41.2, "batch-b": 41.2}
        pool.load("chat", 1.0)
        pool.wait_for_deal(SHARE * 1.5)
        assert sum(pool.wait_until_settled().values()) <= 3 * SHARE
        for name in LEVELS:
            pool.wait_for_steps(name, 5)
        pool.end()


def test_no_step_is_lost_where_two_members_do_not_fit(machine: Machine) -> None:
    """The active ends before its successor starts, but not before its step does."""
    with begun(machine, 0.1, oversubscription=1.0) as pool:

        def moved() -> dict[str, float]:
            """Both kinds of services; one batch service may have joined after the deal."""
            shares = pool.wait_until_settled()
            return shares if shares["chat"] < SHARE < max(shares.values()) else {}

        for name, share in wait_for("the shares", moved, 2 * MOVE_SECONDS).items():
            pool.wait_for_steps(name, 5)
            assert share == SHARE or "so member 1 is ended first" in pool.starter_output(name)
        pool.end()
        lost = {name: len(steps) - len(set(steps)) for name in LEVELS if (steps := pool.steps(name))}
        assert lost == dict.fromkeys(LEVELS, 0)


def test_a_steady_load_moves_nothing(machine: Machine) -> None:
    with begun(machine, 0.64) as pool:
        assert pool.wait_until_settled() == dict.fromkeys(LEVELS, SHARE)
        pool.wait_for_steps("chat", 200)
        chat = pool.services()["chat"].share
        assert chat is not None
        assert chat.why == "stands still: no share would change by 5 % or more"
        assert (pool.moves(), pool.dealt()) == (0, dict.fromkeys(LEVELS, SHARE))
        pool.end()


def test_mpsd_is_killed_in_the_middle_of_a_move(machine: Machine) -> None:
    """The next one knows the deal.  It deals no other one before the starters have carried this one out."""
    with begun(machine, 0.1) as pool:
        pool.wait_for_deal(SHARE / 2)
        dealt = pool.dealt()
        machine.kill_daemon()
        machine.start()
        pool.load("chat", 1.0)
        wait_for("the services", lambda: len(pool.dealt()) == len(LEVELS), MOVE_SECONDS)
        assert pool.dealt() == dealt
        pool.wait_for_deal(SHARE * 1.5)
        assert sum(pool.wait_until_settled().values()) <= 3 * SHARE
        for name in LEVELS:
            pool.wait_for_steps(name, 5)
        pool.end()


def test_a_starter_is_killed_in_the_middle_of_a_move(machine: Machine) -> None:
    """The pool waits for its service.  Another starter takes over once the member that it left behind has ended."""
    with begun(machine, 0.1) as pool:
        pool.wait_for_deal(SHARE / 2)
        pool.kill_starter("chat")
        orphans = [each.pid for each in pool.services()["chat"].members]
        pool.wait_for_steps("chat", 5)
        pool.start("chat")
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            wait_for(f"the end of pid {pid}", lambda pid=pid: not is_running(pid))
        # While chat has no member its part is not the pool's: mpsd may deal the others 33 % each first.
        expected = {"chat": 16.5, "batch-a": 41.2, "batch-b": 41.2}
        wait_for("the shares of before", lambda: pool.wait_until_settled() == expected, 2 * MOVE_SECONDS)
        for name in LEVELS:
            pool.wait_for_steps(name, 5)
        pool.end()
