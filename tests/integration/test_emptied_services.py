"""A service loses its memory with the vault's keeper and its active: the next active begins with the newest image."""

import os
import signal
from pathlib import Path

import pytest

from mpsd.images.store import Images
from tests.integration.process import wait_for
from tests.integration.test_image_deaths import deadly_program
from tests.integration.test_replicas import SECONDS, Cast, Member, events, expected, is_kept, view
from tests.integration.test_replicas import cast as cast
from tests.integration.test_replicas import pytestmark as pytestmark
from tests.integration.test_vault import vault_keeper


def begin(cast: Cast) -> Member:
    """Return the active of a service with images."""
    active = cast.start(0)
    active.first("step")
    with Images.open(cast.directory) as images:
        wait_for("images", lambda: len(images.directory.names()) > 1, SECONDS)
    return active


def lose(cast: Cast, active: Member) -> None:
    """Stop the active, so that it does not give its memory again, and kill the keeper."""
    os.kill(active.pid, signal.SIGSTOP)
    os.kill(vault_keeper(cast.machine), signal.SIGKILL)
    wait_for("the loss", lambda: not is_kept(cast.machine), SECONDS)


def check(cast: Cast, active: Member, standby: Member) -> None:
    assert standby.all("term") == []
    active.kill()
    term = standby.first("term")
    assert (term["found"], term["step"] > 0) == (expected(term["step"]), True)
    standby.first("step")
    assert len(events(cast.machine, "lost")) == 1, "the steps since the image"
    assert not cast.machine.bugs()


def test_a_standby_that_has_mapped_the_lost_memory_begins_with_the_newest_image(cast: Cast) -> None:
    active, standby = begin(cast), cast.start(0)
    wait_for("two ready members", lambda: [each.standing for each in view(cast.machine).members] == ["ready"] * 2, SECONDS)
    lose(cast, active)
    check(cast, active, standby)
    [adopted] = standby.all("adopted")
    assert adopted["names"] == ["words"]


@pytest.mark.slow
def test_a_member_that_finds_the_emptied_arena_open_begins_with_the_newest_image(cast: Cast) -> None:
    """`open` restores an arena only once all processes have closed it, and a killed active has it open until it is fenced."""
    active = begin(cast)
    lose(cast, active)
    standby = cast.start(0)
    wait_for("a second member", lambda: len(view(cast.machine).members) == 2, SECONDS)
    check(cast, active, standby)


@pytest.mark.slow
def test_a_member_that_cannot_restore_the_image_does_not_begin_anew(cast: Cast, tmp_path: Path) -> None:
    """Its imager is killed, and it fails; the next member begins with the image."""
    deadly = {"MPSD_IMAGER": str(deadly_program(tmp_path)), "DEADLY_CALL": "make.1", "DEADLY_VICTIMS": "imager"}
    active = begin(cast)
    standby = cast.start(0, **deadly)
    wait_for("two ready members", lambda: [each.standing for each in view(cast.machine).members] == ["ready"] * 2, SECONDS)
    lose(cast, active)
    active.kill()
    standby.process.wait(SECONDS)
    assert standby.all("term") == []
    last = cast.start(0)
    assert last.first("term")["step"] > 0
    assert not cast.machine.bugs()
