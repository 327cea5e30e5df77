"""The vault's keeper dies under a service: the active continues and gives the vault everything again; losses are reported."""

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from mpsd_client import values

from tests.integration.failovers import Member, Troupe
from tests.integration.machine import Machine
from tests.integration.test_vault import vault_keeper
from tests.seeds import seeds

pytestmark = [pytest.mark.root, pytest.mark.slow]
FAILOVERS = int(os.environ.get("MPSD_TEST_FAILOVERS", "60")) // 10  # of each part
HEARTBEAT_SECONDS = 1.5


@pytest.fixture(name="troupe")
def two_members(machine: Machine) -> Iterator[Troupe]:
    """One that serves, and one that is ready."""
    machine.start()
    made = Troupe(machine, 2, 0.0)
    made.hear(0)
    made.wait_for("one that serves and one that is ready", lambda: made.serving(0))
    made.is_filled = False
    yield made
    made.end()
    assert not machine.bugs()


def the_active(troupe: Troupe) -> Member:
    view = troupe.view()
    active = view and troupe.of(view.writer_pid)
    assert active, troupe.report()
    return active


def kill_the_keeper(troupe: Troupe) -> None:
    before = len(troupe.machine.journal("vault.lost"))
    os.kill(vault_keeper(troupe.machine), signal.SIGKILL)
    troupe.wait_for("mpsd to notice", lambda: len(troupe.machine.journal("vault.lost")) > before)


def protected(troupe: Troupe, generation: int) -> values.Service | None:
    view = troupe.view()
    is_so = view and (view.phase, view.generation, view.protection) == ("serving", generation, "") and troupe.standbys(view)
    return view if is_so else None


def said(troupe: Troupe, what: str) -> list[dict[str, Any]]:
    return [event for event in troupe.machine.journal("service.event") if event["what"] == what]


def test_the_active_goes_on_and_a_standby_can_follow_it(troupe: Troupe) -> None:
    """The keeper dies twice; between and after the kills no step is missing and no other member serves. Then the active is
    killed, and the standby continues from its last step, with its memory."""
    active = the_active(troupe)
    for generation in (2, 3):
        before = len(active.said("step"))
        kill_the_keeper(troupe)
        troupe.wait_for("all of it to be there again", lambda generation=generation: protected(troupe, generation))
        troupe.wait_for("further steps", lambda before=before: len(active.said("step")) > before + 30)  # with another commit
    assert [event["n"] for event in active.said("step")] == list(range(1, len(active.said("step")) + 1))
    assert not [member for member in troupe.members if member.is_at_end], troupe.report()
    assert len(said(troupe, "promoting")) == 1
    assert "has not given it again" in said(troupe, "unprotected")[0]["why"]
    active.kill()
    troupe.wait_for("the other one to serve", lambda: troupe.serving(3, is_covered=False))
    sums = troupe.check()
    assert (sums.terms, sums.recomputed <= 1) == (2, True)


def test_who_was_promoted_gives_what_the_one_before_had_made(machine: Machine) -> None:
    """What it has is imported, and its maker has ended; and so with the next one, who has imported what was given again."""
    machine.start()
    troupe = Troupe(machine, 3, 0.0)
    try:
        troupe.hear(0)
        view = troupe.wait_for("one that serves and one that is ready", lambda: troupe.serving(0))
        for _ in range(2):
            the_active(troupe).kill()
            view = troupe.wait_for("another one to serve", lambda it=view.generation: troupe.serving(it))
            active = the_active(troupe)
            kill_the_keeper(troupe)
            view = troupe.wait_for("all of it to be there again", lambda it=view.generation + 1: protected(troupe, it))
            assert the_active(troupe) is active
        assert troupe.check().terms == 3
    finally:
        troupe.end()
    assert not machine.bugs()


def test_nobody_serves_with_what_was_lost_with_the_keeper_and_the_active(troupe: Troupe) -> None:
    """The active is stopped when the keeper dies, and then killed, so that all of its memory is lost. mpsd reports that to the
    next active, which finds neither memory nor a record."""
    active = the_active(troupe)
    active.kill(signal.SIGSTOP)
    kill_the_keeper(troupe)
    view = troupe.view()
    assert view
    assert "has not given it again" in view.protection
    active.kill()
    troupe.wait_for("the other one to serve", lambda: troupe.serving(2, is_covered=False))
    [anew] = [event for member in troupe.living for event in member.said("promoted")]
    assert (anew["record"], anew["memory"]["step"]) == ({"step": 0, "value": 0}, 0)
    assert "begins without them" in said(troupe, "unprotected")[-1]["why"]
    assert troupe.machine.journal("vault.lost")


@pytest.mark.deadline(300)
@pytest.mark.parametrize("seed", seeds(1, 1))
def test_keepers_die_at_random_moments_and_nothing_is_lost(machine: Machine, seed: int) -> None:
    """One to three of them in a term, mpsd with some; as soon as all is there again the active is killed, or stands still."""
    chance = random.Random(900 + seed)
    machine.configure("[services]\nmost_promotions = 1000\n")
    machine.start()
    troupe, killed = Troupe(machine, 3, HEARTBEAT_SECONDS), 0
    try:
        troupe.hear(0)
        view = troupe.wait_for("one that serves and one that is ready", lambda: troupe.serving(0))
        for _ in range(FAILOVERS):
            active, generation = the_active(troupe), view.generation
            for _ in range(chance.randint(1, 3)):
                troupe.listen(chance.random() * 0.25)
                kill_the_keeper(troupe)
                if chance.random() < 0.3:
                    machine.kill_daemon()
                    machine.start()
                killed, generation = killed + 1, generation + 1
                troupe.wait_for("all of it to be there again", lambda it=generation: protected(troupe, it))
                assert the_active(troupe) is active
            active.kill(chance.choice([signal.SIGKILL, signal.SIGSTOP]))
            view = troupe.wait_for("another one to serve", lambda it=generation: troupe.serving(it))
        sums = troupe.check()
    finally:
        troupe.end()
    print(f"part {seed}: {FAILOVERS} failovers, {killed} keepers, {sums}")
    assert sums.terms == FAILOVERS + 1
    assert not machine.bugs()
